#pragma once

#include <memory>
#include <string>
#include <vector>

#include "benchmarks/support/alternating.h"
#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/loop/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>

/// A whole training step (data, forward, backward, clip, optimizer) of a 2-layer Llama, d 512,
/// sequence 256, on one rank.
namespace trellis::benchmarks {

constexpr std::int64_t kSequence = 256;
constexpr std::int64_t kVocabulary = 2048;
constexpr std::int64_t kStepsPerTurn =
    5;  ///< the first of a turn makes optimizer state and is not counted

inline trainer::RunConfig small_llama(const char* precision) {
  trainer::RunConfig config;
  config.name = "step_benchmark";
  config.trainer.devices = 1;
  config.trainer.max_steps = kStepsPerTurn;
  config.trainer.gradient_clip_val = 1.0;
  config.precision.type = precision;
  trainer::ModelSection& model = config.model;
  model.num_layers = 2;
  model.hidden_size = 512;
  model.ffn_hidden_size = 1408;
  model.num_attention_heads = 8;
  model.num_kv_heads = 8;
  model.encoder_seq_length = kSequence;
  model.max_position_embeddings = kSequence;
  model.vocab_size = kVocabulary;
  return config;
}

class RandomTokens final : public trainer::DataModule {
 public:
  [[nodiscard]] std::vector<trainer::MicroBatch> micro_batches(std::int64_t step,
                                                               int) const override {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const at::Tensor tokens = at::randint(0, kVocabulary, {1, kSequence + 1}, generator, at::kLong);
    return {
        {tokens.narrow(1, 0, kSequence).contiguous(), tokens.narrow(1, 1, kSequence).contiguous()}};
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return 1 << 20; }
  [[nodiscard]] std::string description() const override { return "random tokens"; }
};

/// CPU seconds of each counted step of a fresh run.
inline std::vector<double> step_seconds(const char* precision, const runtime::WorldOptions& world) {
  std::vector<double> seconds;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    trainer::Trainer trainer(small_llama(precision), rank, std::make_shared<RandomTokens>());
    double before = -1;
    trainer.fit([&](const trainer::StepResult&) {
      const double now = thread_seconds();
      if (before >= 0) seconds.push_back(now - before);
      before = now;
    });
  });
  return seconds;
}

}  // namespace trellis::benchmarks
