// Recomputation: the same bits with and without, dropout included; fewer tensors kept.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/checkpointing.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {
namespace {

using namespace testing_support;

/// Two blocks with dropout, each recomputed or not.
struct Block {
  explicit Block(Rank& rank)
      : context(rank.context),
        up(rank.context, "up", 12, {{"", 16}}, {.init = 0.5, .gather_output = false}),
        down(rank.context, "down", 16, 12, {.init = 0.5, .input_is_parallel = true}),
        dropout(rank.context, "drop", 0.4) {}
  at::Tensor plain(const at::Tensor& x) const {
    return dropout.forward(down.forward(up.forward(x)[0].tanh())).add(x);
  }
  at::Tensor forward(const at::Tensor& x, bool recompute) const {
    if (!recompute) return plain(x);
    return checkpoint(context, [this](const std::vector<at::Tensor>& in) { return plain(in[0]); },
                      {x});
  }
  ModuleContext context;
  ColumnParallelLinear up;
  RowParallelLinear down;
  Dropout dropout;
};

std::vector<at::Tensor> gradients(Rank& rank, const at::Tensor& value, bool recompute) {
  rank.parameters.clear();
  const Block block(rank);
  at::Tensor x = rank.region(value).clone().requires_grad_();
  *rank.context.position = {3, 5};
  const at::Tensor y = block.forward(block.forward(x, recompute), recompute);
  *rank.context.position = {3,
                            6};  // by the time backward runs, another micro-batch has gone forward
  y.backward(at::ones_like(y));
  EXPECT_EQ(rank.context.position->microbatch, 6);
  std::vector<at::Tensor> result{y.detach(), x.grad()};
  for (const Parameter& parameter : rank.parameters) result.push_back(parameter.tensor.grad());
  return result;
}

class Recomputation : public testing::TestWithParam<Setup> {};

TEST_P(Recomputation, GivesTheSameBits) {
  const at::Tensor value = random({8, 2, 12}, 1);
  run(GetParam(), [&](Rank& rank) {
    const auto without = gradients(rank, value, false), with = gradients(rank, value, true);
    ASSERT_EQ(with.size(), 6u);
    for (std::size_t i = 0; i < with.size(); ++i)
      EXPECT_EQ((with[i] - without[i]).abs().max().item<double>(), 0) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Recomputation,
                         testing::Values(Setup{1}, Setup{2}, Setup{2, true}, Setup{4, true}),
                         [](const auto& test) { return name_of(test.param); });

TEST(Checkpoint, NestsInItself) {
  at::Tensor x = random({6}, 1).requires_grad_();
  const auto position = std::make_shared<StepPosition>();
  const auto inner = [&](const std::vector<at::Tensor>& in) { return in[0].sin().mul(in[0]); };
  const auto outer = [&](const std::vector<at::Tensor>& in) {
    return checkpoint(position, inner, in).exp();
  };
  checkpoint(position, outer, {x}).sum().backward();
  at::Tensor reference = x.detach().clone().requires_grad_();
  (reference.sin() * reference).exp().sum().backward();
  EXPECT_TRUE(x.grad().equal(reference.grad()));
}

TEST(Checkpoint, KeepsItsInputsOnlyAndRunsTwice) {
  at::Tensor x = random({6}, 1).requires_grad_();
  int runs = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl> inside(at::empty({0}).getIntrusivePtr());
  const auto function = [&](const std::vector<at::Tensor>& in) {
    ++runs;
    const at::Tensor middle = in[0].exp();
    inside = c10::weak_intrusive_ptr<c10::TensorImpl>(middle.getIntrusivePtr());
    return middle * in[1];
  };
  const at::Tensor y =
      checkpoint(std::make_shared<StepPosition>(), function, {x, at::full({}, 2.0, at::kDouble)});
  EXPECT_TRUE(inside.expired()) << "an intermediate result is still alive after forward";
  EXPECT_EQ(runs, 1);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(x.grad().equal(x.detach().exp() * 2));
}

TEST(Checkpoint, BothRunsSeeTheSameAutocastMode) {
  at::Tensor x = at::ones({2, 2}).requires_grad_();
  std::vector<at::ScalarType> seen;
  const auto function = [&](const std::vector<at::Tensor>& in) {
    const at::Tensor product = at::matmul(in[0], in[0]);
    seen.push_back(product.scalar_type());
    return product.to(at::kFloat);
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = checkpoint(std::make_shared<StepPosition>(), function, {x});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  at::autocast::clear_cache();
}

TEST(Checkpoint, AnInputWithoutGradientIsAnError) {
  EXPECT_THROW(checkpoint(std::make_shared<StepPosition>(),
                          [](const auto& in) { return in[0] * 2; }, {at::ones({2})}),
               c10::Error);
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW(checkpoint(std::make_shared<StepPosition>(),
                             [](const auto& in) { return in[0] * 2; }, {at::ones({2})}));
}

TEST(Checkpoint, AnInputChangedBeforeBackwardIsNoticed) {
  at::Tensor x = at::ones({3}, at::kDouble).requires_grad_();
  at::Tensor input = x * 2;
  const at::Tensor y = checkpoint(std::make_shared<StepPosition>(),
                                  [](const auto& in) { return in[0].sin(); }, {input});
  input.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace trellis::trainer
