#include <thread>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/device/aten/neuron_fixture.h"

/// The recorder receives each operator that runs on the device once, under its own name, with the
/// buffers that it touched.
namespace trellis::device::testing {
namespace {

using at::Tensor;
using Ops = std::vector<std::string>;

class RecordingTest : public NeuronTest {
 protected:
  static at::TensorOptions on_device() { return at::TensorOptions(at::kFloat).device(neuron(0)); }
  /// The operators that `body` records.
  template <typename Body>
  static Ops ops_of(Body body) {
    recorder(0).cut("test");
    body();
    return recorded_ops(0);
  }
};

TEST_F(RecordingTest, MatrixProductIsOneRecordWithItsOperands) {
  const Tensor a = at::ones({3, 4}, on_device()), b = at::ones({5, 4}, on_device());
  recorder(0).cut("test");
  const Tensor c = a.mm(b.t());
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].op, "aten::mm");
  EXPECT_EQ(lines[0].scalars, "");
  EXPECT_EQ(lines[0].inputs, (Ops{"#0{48}[3, 4]/[4, 1]+0:0", "#1{80}[4, 5]/[1, 4]+0:0"}));
  EXPECT_EQ(lines[0].outputs, (Ops{"#2{60}[3, 5]/[5, 1]+0:0"}));
}

TEST_F(RecordingTest, HostNumbersAreScalarsAndNoOperands) {
  Tensor a = at::ones({3, 4}, on_device());
  recorder(0).cut("test");
  a.mul_(0.5);
  a.add_(3);
  at::div(a, 4.0);
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0].scalars, ::testing::HasSubstr("self=0.5"))
      << "LibTorch calls mul.out(0.5, a)";
  EXPECT_THAT(lines[1].scalars, ::testing::HasSubstr("other=3"));
  EXPECT_THAT(lines[2].scalars, ::testing::HasSubstr("other=4"));
  for (const auto& line : lines) EXPECT_FALSE(line.scalars.starts_with(' ')) << line.scalars;
}

TEST_F(RecordingTest, ScalarsAreCompactText) {
  const Tensor a = at::ones({3, 4}, on_device());
  recorder(0).cut("test");
  a.add(a, 2);
  a.sum(at::IntArrayRef{-1}, true);
  at::softmax(a, 1);
  a.mul_(a);
  a.to(at::kBFloat16);
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].op + " " + lines[0].scalars, "aten::add.Tensor alpha=2");
  EXPECT_EQ(lines[1].op + " " + lines[1].scalars, "aten::sum.dim_IntList dim=[-1] keepdim=1");
  EXPECT_EQ(lines[2].op + " " + lines[2].scalars, "aten::_softmax dim=1 half_to_float=0");
  EXPECT_EQ(lines[3].op, "aten::mul_.Tensor");
  EXPECT_EQ(lines[4].op, "aten::_copy_from");
}

TEST_F(RecordingTest, NumbersOfEachCallAreItsOwn) {
  const std::vector<std::pair<at::Scalar, std::string>> alphas = {
      {1, "1"},     {1, "1"},   {2, "2"},     {1, "1"},   {0.5, "0.5"},
      {0.5, "0.5"}, {0.0, "0"}, {-0.0, "-0"}, {1.0, "1"}, {-3, "-3"}};
  const std::vector<std::int64_t> dims = {0, 0, 1, -1, 0};
  for (const int rank : {0, 1, 0}) {
    bind_this_thread(rank);
    const Tensor a = at::ones({3, 4}, at::TensorOptions(neuron(rank)));
    recorder(rank).cut("test");
    for (const auto& [alpha, text] : alphas) at::sub(a, a, alpha);
    for (const std::int64_t dim : dims) at::cat({a, a}, dim);
    const auto lines = recorded(rank);
    ASSERT_EQ(lines.size(), alphas.size() + dims.size());
    for (std::size_t i = 0; i < alphas.size(); ++i)
      EXPECT_EQ(lines[i].op + " " + lines[i].scalars, "aten::sub.Tensor alpha=" + alphas[i].second);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const auto& line = lines[alphas.size() + i];
      EXPECT_EQ(line.op + " " + line.scalars, "aten::cat dim=" + std::to_string(dims[i]));
      EXPECT_EQ(line.inputs.size(), 2u);
    }
  }
}

TEST_F(RecordingTest, MetadataAndViewsAreNotRecorded) {
  const Tensor a = at::ones({4, 6}, on_device());
  EXPECT_EQ(ops_of([&] {
              a.view({2, 12})
                  .t()
                  .unsqueeze(0)
                  .expand({3, 12, 2})
                  .select(0, 1)
                  .slice(0, 1, 3)
                  .detach()
                  .alias();
              a.reshape({24}).unfold(0, 3, 2).is_same_size(a);
              at::empty({3}, on_device()).resize_({5});
              a.split(2, 1);
            }),
            Ops{});
}

TEST_F(RecordingTest, CompositesThatLibTorchWouldDecomposeStayWhole) {
  const Tensor x = at::ones({2, 3, 8}, on_device()), w = at::ones({8}, on_device());
  const Tensor table = at::ones({9, 8}, on_device()),
               tokens = at::zeros({2, 3}, on_device().dtype(at::kLong));
  EXPECT_EQ(ops_of([&] { at::layer_norm(x, {8}, w, w); }), Ops{"aten::native_layer_norm"});
  EXPECT_EQ(ops_of([&] { at::rms_norm(x, {8}, w); }), Ops{"aten::_fused_rms_norm"});
  EXPECT_EQ(ops_of([&] { at::embedding(table, tokens); }), Ops{"aten::embedding"});
  EXPECT_EQ(ops_of([&] { at::linear(x, table, at::ones({9}, at::kFloat).to(neuron(0))); }),
            (Ops{"aten::_copy_from", "aten::addmm"}));
  EXPECT_EQ(ops_of([&] { at::cat({x, x}, 1); }), Ops{"aten::cat"});
  EXPECT_EQ(ops_of([&] { at::silu(x); }), Ops{"aten::silu"});
  EXPECT_EQ(ops_of([&] { x.masked_fill(x > 0, 1); }),
            (Ops{"aten::gt.Scalar", "aten::masked_fill.Scalar"}));
  EXPECT_EQ(ops_of([&] { at::dropout(x, 0.5, true); }), Ops{"aten::native_dropout"});
  EXPECT_EQ(ops_of([&] { at::randn({2, 2}, on_device()); }), Ops{"aten::normal_"});
}

TEST_F(RecordingTest, AttentionIsOneOperationEachWay) {
  Tensor q = at::ones({2, 2, 6, 8}, on_device()).requires_grad_(),
         k = at::ones({2, 2, 6, 8}, on_device()).requires_grad_(),
         v = at::ones({2, 2, 6, 8}, on_device()).requires_grad_();
  Tensor y;
  EXPECT_EQ(ops_of([&] { y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); }),
            Ops{"aten::_scaled_dot_product_fused_attention_overrideable"});
  const Tensor seed = at::ones_like(y);
  EXPECT_EQ(ops_of([&] { torch::autograd::grad({y}, {q, k, v}, {seed}); }),
            Ops{"aten::_scaled_dot_product_fused_attention_overrideable_backward"});
}

TEST_F(RecordingTest, InPlaceReadsAndWritesOutOnlyWrites) {
  Tensor a = at::ones({3, 4}, on_device()), b = at::ones({3, 4}, on_device()),
         o = at::empty({0}, on_device());
  recorder(0).cut("test");
  a.add_(b);
  at::add_out(o, a, b);
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].inputs.size(), 2u);
  EXPECT_EQ(lines[0].outputs, Ops{lines[0].inputs[0]});
  EXPECT_EQ(lines[1].op, "aten::add.out");
  EXPECT_EQ(lines[1].inputs, (Ops{lines[0].inputs[0], lines[0].inputs[1]}));
  EXPECT_EQ(lines[1].outputs, (Ops{"#2{48}[3, 4]/[4, 1]+0:0"}));
}

TEST_F(RecordingTest, ListsChangedInPlaceAreOutputs) {
  const std::vector<Tensor> a = {at::ones({3}, on_device()), at::ones({2}, on_device())};
  recorder(0).cut("test");
  at::_foreach_mul_(a, 2);
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].op, "aten::_foreach_mul_.Scalar");
  EXPECT_EQ(lines[0].inputs.size(), 2u);
  EXPECT_EQ(lines[0].outputs, lines[0].inputs);
}

TEST_F(RecordingTest, CopiesNameTheOtherSide) {
  const Tensor host = at::ones({3});
  recorder(0).cut("test");
  const Tensor device = host.to(neuron(0));
  device.cpu();
  device.clone();
  device.sum().item();
  const auto lines = recorded(0);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].op + " " + lines[0].scalars, "aten::_copy_from from=cpu");
  EXPECT_TRUE(lines[0].inputs.empty());
  EXPECT_EQ(lines[1].op + " " + lines[1].scalars, "aten::_copy_from to=cpu");
  EXPECT_TRUE(lines[1].outputs.empty());
  EXPECT_EQ(lines[2].op + " " + lines[2].scalars, "aten::_copy_from ");
  EXPECT_EQ(lines[4].op, "aten::_local_scalar_dense");
}

TEST_F(RecordingTest, BackwardIsChargedToTheLayerOfItsForward) {
  const Tensor w1 = at::ones({4, 4}, on_device()).requires_grad_(),
               w2 = at::ones({4, 4}, on_device()).requires_grad_();
  recorder(0).cut("test");
  Tensor y;
  {
    RECORD_USER_SCOPE("phase=forward");
    {
      RECORD_USER_SCOPE("layer=first");
      y = w1.mm(w1);
    }
    {
      RECORD_USER_SCOPE("layer=second");
      y = y.mm(w2);
    }
    y = y.sum();
    for (const Line& line : recorded(0)) EXPECT_EQ(line.scope.phase, "forward");
  }
  const Tensor seed = at::ones({}, on_device());
  RECORD_USER_SCOPE("phase=backward");
  torch::autograd::grad({y}, {w1, w2}, {seed});
  std::map<std::string, std::vector<std::string>> by_layer;
  for (const Line& line : recorded(0)) {
    EXPECT_EQ(line.scope.phase, "backward");
    by_layer[line.scope.layer].push_back(line.op);
  }
  EXPECT_EQ(by_layer["second"], (Ops{"aten::mm", "aten::mm"}));
  EXPECT_EQ(std::count(by_layer["first"].begin(), by_layer["first"].end(), "aten::mm"), 2);
}

TEST_F(RecordingTest, ThreadThatDoesNotOwnTheRankRunsButDoesNotRecord) {
  const Tensor a = at::ones({3}, on_device());
  const std::size_t before = recorded(0).size();
  std::thread([&a] { EXPECT_EQ((a + a).cpu().sum().item<float>(), 6); }).join();
  EXPECT_EQ(recorded(0).size(), before);
  static_cast<void>(a + a);
  EXPECT_EQ(recorded(0).size(), before + 1);
}

TEST_F(RecordingTest, ARankWithoutAnOwnerBelongsToTheFirstThreadThatUsesIt) {
  const Tensor a = at::ones({3}, at::TensorOptions(at::kFloat).device(neuron(1)));
  static_cast<void>(a + a);
  EXPECT_FALSE(recorded(1).empty());
}

}  // namespace
}  // namespace trellis::device::testing
