// The engine with a toy model whose gradients are known: y = w_0 · w_1 · … · x, loss = y · label.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/world.h"
#include "trainer/pipeline/model.h"

namespace trellis::trainer {
namespace {

constexpr int kMicroBatches = 5;

class Multiply final : public PipelineStage {
 public:
  Multiply(at::Tensor weight, bool is_last) : weight_(std::move(weight)), is_last_(is_last) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const at::Tensor& labels) const override {
    const at::Tensor output = input * weight_;
    return is_last_ ? (output * labels).sum() : output;
  }

 private:
  at::Tensor weight_;
  bool is_last_;
};

std::vector<MicroBatch> micro_batches(int dp_rank) {
  std::vector<MicroBatch> result;
  for (int m = 0; m < kMicroBatches; ++m) result.push_back({at::full({1}, m + 1.0 + dp_rank, at::kDouble), at::full({1}, 2.0 * m - 3, at::kDouble)});
  return result;
}

/// Mean of x·label over the micro-batches.
double mean_product(int dp_rank) {
  double sum = 0;
  for (int m = 0; m < kMicroBatches; ++m) sum += (m + 1.0 + dp_rank) * (2.0 * m - 3);
  return sum / kMicroBatches;
}

struct Mesh {
  int pp, dp;
};
class PipelineEngine : public testing::TestWithParam<Mesh> {};

TEST_P(PipelineEngine, LossAndGradientsAreTheMeanOverMicroBatches) {
  const auto [pp, dp] = GetParam();
  double product = 1, mean_loss = 0;
  for (int stage = 0; stage < pp; ++stage) product *= stage + 2;
  for (int d = 0; d < dp; ++d) mean_loss += product * mean_product(d) / dp;
  runtime::WorldOptions world;
  world.world_size = pp * dp;
  runtime::run_ranks(world, [&, pp = pp](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 1, pp);
    const int stage = state.get_pipeline_model_parallel_rank();
    at::Tensor weight = at::full({1}, stage + 2.0, at::kDouble).requires_grad_();
    NxDPPModel model(std::make_unique<Multiply>(weight, state.is_pipeline_last_stage()), state, kMicroBatches,
                     {{1}, at::TensorOptions().dtype(at::kDouble)}, std::make_shared<BackwardLayer>());
    for (int step = 1; step <= 2; ++step) {
      int reductions = 0;
      const at::Tensor loss = model.run_train(micro_batches(state.get_data_parallel_rank()), [&] { ++reductions; });
      EXPECT_NEAR(loss.item<double>(), mean_loss, 1e-12) << "the same on every rank";
      EXPECT_NEAR(weight.grad().item<double>(), step * product / (stage + 2) * mean_product(state.get_data_parallel_rank()), 1e-12);
      EXPECT_EQ(reductions, 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, PipelineEngine, testing::Values(Mesh{1, 1}, Mesh{2, 1}, Mesh{3, 1}, Mesh{7, 1}, Mesh{1, 2}, Mesh{2, 2}),
                         [](const auto& test) { return "PP" + std::to_string(test.param.pp) + "DP" + std::to_string(test.param.dp); });

TEST(PipelineEngineInput, AWrongNumberOfMicroBatchesIsNamed) {
  at::Tensor weight = at::ones({1}, at::kDouble).requires_grad_();
  NxDPPModel model(std::make_unique<Multiply>(weight, true), ParallelState(), 3, {{1}, at::TensorOptions().dtype(at::kDouble)},
                   std::make_shared<BackwardLayer>());
  EXPECT_THROW(model.run_train(micro_batches(0), [] {}), c10::Error);
}

}  // namespace
}  // namespace trellis::trainer
