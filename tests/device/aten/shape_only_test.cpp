#include <torch/csrc/autograd/autograd.h>

#include "device/aten/shapes/shape_policy.h"
#include "device/aten/state/storage.h"
#include "tests/device/aten/op_cases.h"
#include "tests/device/aten/tiny_model.h"

/// Shape-only mode: the same records and the same bytes as with data, without data.
namespace trellis::device::testing {
namespace {

/// Results of `body` in a rank's recorder and account.
struct Seen {
  std::string stream;
  std::int64_t peak = 0, reserved = 0, kept = 0;
};

class ShapeOnlyTest : public NeuronTest {
 protected:
  template <typename Body>
  static Seen observe(int rank, Body body) {
    use(rank);
    MemoryAccount& memory = recorder(rank).memory();
    const std::int64_t before = memory.current();
    memory.empty_cache();
    memory.reset_peak();
    const std::int64_t reserved = memory.peak_reserved();
    Seen seen;
    const auto results = body(neuron(rank));
    seen.peak = memory.peak() - before;
    seen.reserved = memory.peak_reserved() - reserved;
    seen.kept = memory.current() - before;
    seen.stream = to_text(recorded(rank));
    return seen;
  }

  template <typename Body>
  static void expect_same(const std::string& what, Body body) {
    const Seen data = observe(0, body), shapes = observe(kShapeOnly, body);
    EXPECT_FALSE(data.stream.empty()) << what;
    EXPECT_EQ(data.stream, shapes.stream) << what;
    EXPECT_EQ(data.peak, shapes.peak) << what;
    EXPECT_EQ(data.reserved, shapes.reserved) << what;
    EXPECT_EQ(data.kept, shapes.kept) << what;
  }

  static void expect_same(const std::vector<Group>& groups) {
    const at::NoGradGuard no_grad;
    for (const Group& group : groups) {
      for_each_case(group, [](const Case& one, at::ScalarType type) {
        const std::string what = c10::str(one.name, " ", type);
        try {
          expect_same(what, [&](at::Device device) {
            Arguments arguments(device);
            return one.run(arguments, type);
          });
        } catch (const std::exception& error) {
          ADD_FAILURE() << what << ": " << error.what();
        }
      });
    }
  }
};

TEST_F(ShapeOnlyTest, Unary) { expect_same(unary_groups()); }
TEST_F(ShapeOnlyTest, Binary) { expect_same(binary_groups()); }
TEST_F(ShapeOnlyTest, ScalarsAndTypePromotion) { expect_same(scalars_and_type_promotion_groups()); }
TEST_F(ShapeOnlyTest, Reductions) { expect_same(reductions_groups()); }
TEST_F(ShapeOnlyTest, Products) { expect_same(products_groups()); }
TEST_F(ShapeOnlyTest, ShapesAndViews) { expect_same(shapes_and_views_groups()); }
TEST_F(ShapeOnlyTest, Indexing) { expect_same(indexing_groups()); }
TEST_F(ShapeOnlyTest, NeuralNetwork) { expect_same(neural_network_groups()); }
TEST_F(ShapeOnlyTest, InPlaceAndOut) { expect_same(in_place_and_out_groups()); }
TEST_F(ShapeOnlyTest, Factories) { expect_same(factories_groups()); }
TEST_F(ShapeOnlyTest, FusedOptimizers) { expect_same(fused_optimizers_groups()); }

TEST_F(ShapeOnlyTest, TrainingStepIsTheSameStreamAndTheSameBytes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    expect_same(c10::str("training ", type),
                [&](at::Device device) { return train(device, type, 2); });
  }
}

TEST_F(ShapeOnlyTest, GradientsOfFusedOperators) {
  expect_same("gradients", [](at::Device device) {
    const auto leaf = [&](at::IntArrayRef size) {
      return at::zeros(size).to(at::kBFloat16).to(device).requires_grad_();
    };
    const at::Tensor x = leaf({2, 3, 8}), w = leaf({8}), table = leaf({9, 8}),
                     q = leaf({1, 4, 5, 8}), k = leaf({1, 2, 5, 8}), v = leaf({1, 2, 5, 8});
    const at::Tensor tokens = at::tensor({1, 3, 3}).to(device), kernel = leaf({4, 3, 3});
    const at::Tensor loss =
        at::rms_norm(x, {8}, w, 1e-5).pow(2).sum() + at::layer_norm(x, {8}, w, w).pow(3).sum() +
        at::embedding(table, tokens).pow(2).sum() +
        at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, true).pow(2).sum() +
        at::conv1d(x, kernel).pow(2).sum() +
        at::scaled_dot_product_attention(q, q, q.detach().clone().requires_grad_()).sum() +
        at::dropout(x, 0.1, true).sum() + at::silu(x).sum() + at::gelu(x).sum() +
        at::relu(x).sum() + x.softmax(-1).pow(2).sum() + x.logsumexp(-1).sum() +
        x.index({tokens.slice(0, 0, 1)}).sum() + x.std(-1).sum() +
        x.gather(2, tokens.view({1, 3, 1})).sum() +
        at::group_norm(x, 3, leaf({3}), leaf({3})).sum() + x.abs().sum() +
        at::where(x > 0, x, x * 2).sum();
    return torch::autograd::grad({loss}, {x, w, table, q, k, v, kernel});
  });
}

TEST_F(ShapeOnlyTest, NoMemoryIsTakenForAModelLargerThanTheHost) {
  use(kShapeOnly);
  const at::Tensor a =
      at::empty({kHbm / 16}, at::TensorOptions(at::kFloat).device(neuron(kShapeOnly)));
  EXPECT_EQ(a.storage().data(), nullptr);
  EXPECT_EQ((a * 2).storage().data(), nullptr);
  EXPECT_THROW(at::empty({kHbm}, a.options()), c10::OutOfMemoryError);
}

TEST_F(ShapeOnlyTest, ValuesAreAPolicy) {
  use(kShapeOnly);
  const at::Tensor a = at::zeros({3}, at::TensorOptions(at::kFloat).device(neuron(kShapeOnly)));
  EXPECT_EQ(a.sum().item<float>(), 1.0F);
  EXPECT_TRUE((a == a).all().item<bool>());
  EXPECT_EQ(a.to(at::kLong).sum().item<std::int64_t>(), 1);
  EXPECT_EQ(a.cpu().sum().item<float>(), 0.0F);
}

TEST_F(ShapeOnlyTest, AnUpperBoundIsWhatComesOutWhenEverythingIsSelected) {
  set_shape_policy(ShapePolicy::kUpperBound);
  expect_same("everything", [](at::Device device) {
    const at::Tensor different = at::arange(1, 25, at::kFloat).view({2, 3, 4}).to(device),
                     row = different.select(0, 0);
    const at::Tensor all = different > 0;
    return std::vector<at::Tensor>{different.nonzero(),
                                   different.masked_select(all),
                                   different.index({all}),
                                   row.index({row > 0}),
                                   std::get<1>(at::_unique2(different, true, true, true)),
                                   std::get<0>(at::unique_dim(row, 0)),
                                   std::get<2>(at::unique_consecutive(different, true, true))};
  });
  set_shape_policy(ShapePolicy::kRefuse);
}

TEST_F(ShapeOnlyTest, DataDependentOperatorsAreNamed) {
  const at::NoGradGuard no_grad;
  for (const Group& group : data_dependent_groups()) {
    for_each_case(group, [](const Case& one, at::ScalarType type) {
      use(kShapeOnly);
      Arguments arguments(neuron(kShapeOnly));
      recorder(kShapeOnly).push_scope("phase=forward");
      try {
        one.run(arguments, type);
        ADD_FAILURE() << one.name << " should not have a shape";
      } catch (const c10::Error& error) {
        const std::string text = error.what_without_backtrace();
        EXPECT_NE(text.find("depends on data"), std::string::npos) << text;
        EXPECT_NE(text.find("phase 'forward'"), std::string::npos) << text;
      }
      recorder(kShapeOnly).pop_scope("phase=forward");
    });
  }
}

}  // namespace
}  // namespace trellis::device::testing
