// A custom data module: a training over TP 2 × DP 2, and on one rank: docs/guides/extend.md.
#include <cmath>
#include <cstdio>

#include <ATen/ATen.h>

#include "runtime/ranks/world.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/loop/trainer.h"

using namespace trellis::trainer;

/// Rows count up from a number that follows from the step and the row's place in the global batch.
class Counting final : public DataModule {
 public:
  explicit Counting(const RunConfig& config) : config_(config) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    const std::int64_t rows = config_.data.micro_batch_size;
    const std::int64_t length = config_.model.encoder_seq_length;
    std::vector<MicroBatch> batches(static_cast<std::size_t>(config_.num_microbatches()));
    std::int64_t place = dp_rank * rows * config_.num_microbatches();
    for (MicroBatch& batch : batches) {
      for (std::int64_t row = 0; row < rows; ++row) batch.places.push_back(place++);
      const at::Tensor first = at::tensor(batch.places).unsqueeze(1) * 29 + step * 41;
      const at::Tensor tokens = (first + at::arange(length + 1)).remainder(200);
      batch.input_ids = tokens.narrow(1, 0, length).contiguous();
      batch.labels = tokens.narrow(1, 1, length).contiguous();
    }
    return batches;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return std::int64_t{1} << 40; }
  [[nodiscard]] std::string description() const override { return "numbers that count up"; }

 private:
  const RunConfig& config_;
};

std::vector<double> losses(const char* file, std::vector<std::string> layout) {
  for (const char* small : {"trainer.max_steps=12", "model.num_layers=2", "model.hidden_size=32",
                            "model.ffn_hidden_size=64", "precision.type=fp32",
                            "distributed_strategy.pipeline_model_parallel_size=1"})
    layout.emplace_back(small);
  const RunConfig config = load_run_config(file, layout);
  std::vector<double> result;
  trellis::runtime::run_ranks({.world_size = config.world_size()}, [&](auto& rank) {
    Trainer(config, rank, std::make_shared<Counting>(config)).fit([&](StepResult& step) {
      result.push_back(step.loss);
    });
  });
  return result;
}

int main(int, char** argv) {
  const auto four = losses(argv[1], {"trainer.devices=4"});
  const auto one = losses(argv[1], {"trainer.devices=1", "model.make_vocab_size_divisible_by=16",
                                    "distributed_strategy.tensor_model_parallel_size=1"});
  std::printf("loss %.4f → %.4f over 4 ranks, %.4f → %.4f on one\n", four.front(), four.back(),
              one.front(), one.back());
  return four.back() < 0.9 * four.front() && std::abs(four.back() - one.back()) < 1e-4 ? 0 : 1;
}
