#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// A legal configuration; tests change it by overrides or by replacing lines.
inline constexpr const char* kBaseConfig = R"(name: tiny
model_source: megatron
seed: 7
trainer:
  devices: 8
  max_steps: 10
  gradient_clip_val: 1.0
exp_manager:
  name: tiny
distributed_strategy:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
data:
  micro_batch_size: 2
  global_batch_size: 16
  tokenizer:
    library: byte-level
model:
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: 96
  num_attention_heads: 4
  num_kv_heads: 2
  encoder_seq_length: 32
  max_position_embeddings: 64
  make_vocab_size_divisible_by: 8
  normalization: rmsnorm
  activation: swiglu
  position_embedding_type: rope
  has_bias: false
  share_embeddings_and_output_weights: false
  hidden_dropout: 0
  optim:
    name: adamw
    lr: 1.0e-3
    betas: [0.9, 0.95]
    sched:
      name: CosineAnnealing
      warmup_steps: 2
      min_lr: 1.0e-5
precision:
  type: mixed_precision
)";

/// The base configuration with `from` replaced by `to` once.
inline std::string changed(const std::string& from, const std::string& to) {
  std::string text = kBaseConfig;
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << "the base configuration has no: " << from;
  return place == std::string::npos ? text : text.replace(place, from.size(), to);
}

inline RunConfig load_text(const std::string& text,
                           const std::vector<std::string>& overrides = {}) {
  const TemporaryDirectory directory;
  return load_run_config(directory.write("run.yaml", text), overrides);
}

/// The error's lines, each without the directory of "run.yaml"; "" when there is no error.
inline std::string problems_of(const std::string& text,
                               const std::vector<std::string>& overrides = {}) {
  const TemporaryDirectory directory;
  try {
    (void)load_run_config(directory.write("run.yaml", text), overrides);
  } catch (const ConfigError& error) {
    std::string lines = error.what();
    const std::string prefix = directory.path().string() + "/";
    for (std::size_t at = lines.find(prefix); at != std::string::npos; at = lines.find(prefix))
      lines.erase(at, prefix.size());
    return lines;
  }
  return "";
}

}  // namespace trellis::trainer
