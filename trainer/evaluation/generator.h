#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/evaluation/sampling.h"
#include "trainer/modules/kv_cache.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

struct GenerationOptions {
  std::int64_t max_new_tokens = 128;
  SamplingOptions sampling = {};
  std::set<std::int64_t> stop = {};  ///< an answer ends with one of these, which belongs to it
  std::int64_t vocab_size = 0;       ///< tokens from here on only fill the vocabulary up
  std::int64_t cached_tokens = 0;  ///< of an answer that the cache has room for; 0: max_new_tokens
  /// Called after each pass over the model and the choice of its tokens, when set. Pass 1 reads the
  /// prompts, each later one a token.
  std::function<void(std::int64_t pass, const KvCache& cache)> ended = {};
};

/// A text to continue.
struct Prompt {
  std::int64_t record = 0;  ///< its number, for what is random
  std::vector<std::int64_t> ids;
};

/// Decodes with keys and values of earlier tokens kept. The ranks of a TP × PP group call it
/// together with the same prompts and get the same tokens.
class Generator {
 public:
  /// `stages`: this rank's. Throws ConfigError for context and expert parallelism, virtual stages,
  /// and experts that drop tokens.
  Generator(const RunConfig& config, const ModuleContext& context,
            const std::vector<std::unique_ptr<PipelineStage>>& stages);

  /// The answer to each prompt, without it. A row ends with a stop token, after max_new_tokens, or
  /// with the model's sequence length. REQUIRES: prompts of 1 … sequence length − 1 tokens.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> generate(
      const std::vector<Prompt>& prompts, const GenerationOptions& options) const;

 private:
  struct Batch;
  void refuse_unsupported() const;
  [[nodiscard]] at::Tensor read_prompts(const Batch& batch, KvCache& cache) const;
  [[nodiscard]] at::Tensor read_newest(const Batch& batch, KvCache& cache) const;
  [[nodiscard]] at::Tensor pass(const DecodeTokens& tokens, KvCache& cache) const;
  [[nodiscard]] at::Tensor receive(const KvCache& cache) const;
  void append(const at::Tensor& logits, const GenerationOptions& options, Batch& batch) const;
  [[nodiscard]] at::Tensor on_device(const at::Tensor& host) const {
    return host.to(context_.device);
  }

  const RunConfig& config_;
  const ModuleContext& context_;
  const PipelineStage& stage_;
  at::ScalarType border_;  ///< dtype of what crosses a stage border
};

}  // namespace trellis::trainer
