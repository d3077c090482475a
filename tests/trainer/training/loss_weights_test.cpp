// Ignored labels: a step's loss is one mean over the labels that count in its global batch, however
// the batch is cut into micro-batches and spread over ranks.
#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"

namespace trellis::trainer {
namespace {

using testing_support::Layout;
using testing_support::small_llama;

/// Row r of a global batch has 1 … s labels with a loss, half of them with half a weight; the rows
/// of a rank are consecutive.
class MaskedRows final : public DataModule {
 public:
  explicit MaskedRows(const RunConfig& config) : config_(config) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    const std::int64_t b = config_.data.micro_batch_size, count = config_.num_microbatches();
    std::vector<MicroBatch> result;
    for (std::int64_t m = 0; m < count; ++m) {
      std::vector<at::Tensor> ids, labels, masks;
      for (std::int64_t i = 0; i < b; ++i) {
        const std::int64_t row = (dp_rank * count + m) * b + i;
        add_row(step * config_.data.global_batch_size + row, ids, labels, masks);
      }
      MicroBatch batch{at::stack(ids), at::stack(labels), at::stack(masks)};
      result.push_back(std::move(batch));
    }
    return result;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return std::int64_t{1} << 30; }
  [[nodiscard]] std::string description() const override { return "rows with ignored labels"; }

 private:
  void add_row(std::int64_t row, std::vector<at::Tensor>& ids, std::vector<at::Tensor>& labels,
               std::vector<at::Tensor>& masks) const {
    const std::int64_t s = config_.model.encoder_seq_length;
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(5 + row));
    const at::Tensor tokens = at::randint(0, 51, {s + 1}, generator, at::kLong);
    ids.push_back(tokens.narrow(0, 0, s));
    labels.push_back(tokens.narrow(0, 1, s).clone());
    labels.back().narrow(0, 1 + row * 7 % s, s - 1 - row * 7 % s).fill_(-100);
    masks.push_back(at::ones({s}, at::kFloat));
    if (row % 2 == 1) masks.back().fill_(0.5);
  }
  RunConfig config_;
};

struct Trained {
  double loss = 0, grad_norm = 0;
  std::map<std::string, at::Tensor> weights;  ///< of the rank with the first layer; no TP
};

Trained train(const Layout& layout, int micro_batch_size, std::optional<double> clip) {
  RunConfig config = small_llama(layout, "fp64", 2);
  config.data.micro_batch_size = micro_batch_size;
  config.trainer.gradient_clip_val = clip;
  const auto data = std::make_shared<MaskedRows>(config);
  Trained trained;
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Trainer trainer(config, rank, data);
    trainer.fit([&](const StepResult& step) {
      trained.loss = step.loss;
      trained.grad_norm = step.grad_norm;
    });
    if (rank.rank() != 0) return;
    for (const auto& [name, weight] : trainer.local_weights())
      trained.weights[name] = weight.tensor;
  });
  return trained;
}

void expect_equal(const Trained& got, const Trained& expected) {
  EXPECT_NEAR(got.loss, expected.loss, 1e-11 * expected.loss);
  EXPECT_NEAR(got.grad_norm, expected.grad_norm, 1e-10 * expected.grad_norm);
  ASSERT_FALSE(got.weights.empty());
  for (const auto& [name, weight] : got.weights) {
    const at::Tensor& other = expected.weights.at(name);
    EXPECT_LT((weight - other).norm().item<double>(), 1e-10 * other.norm().item<double>()) << name;
  }
}

class LossWeights : public testing::TestWithParam<std::optional<double>> {};

TEST_P(LossWeights, DoNotDependOnMicroBatchesOrRanks) {
  const Trained whole = train({}, 8, GetParam());
  for (const int micro_batch_size : {1, 2, 4}) {
    SCOPED_TRACE(micro_batch_size);
    expect_equal(train({}, micro_batch_size, GetParam()), whole);
  }
  expect_equal(train({.dp = 2}, 2, GetParam()), whole);
  expect_equal(train({.dp = 4, .zero1 = false}, 1, GetParam()), whole);
  expect_equal(train({.pp = 2, .dp = 2}, 1, GetParam()), whole);
}

INSTANTIATE_TEST_SUITE_P(ClippedOrNot, LossWeights, testing::Values(0.5, std::nullopt),
                         [](const auto& test) { return test.param ? "clipped" : "whole"; });

}  // namespace
}  // namespace trellis::trainer
