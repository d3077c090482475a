#include "tests/device/aten/op_cases.h"

/// Operators on `neuron` against the same operators on the CPU: results must agree bit for bit,
/// with equal sizes, strides and types.
namespace trellis::device::testing {
namespace {

void expect_equal_on_both(const std::vector<Group>& groups) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups) {
    for_each_case(group, [](const Case& one, at::ScalarType type) {
      const std::string what = c10::str(one.name, " ", type);
      try {
        Arguments on_cpu(at::kCPU), on_neuron(neuron(0));
        const Results expected = one.run(on_cpu, type);
        const Results got = one.run(on_neuron, type);
        ASSERT_EQ(expected.size(), got.size()) << what;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(!got[i].defined() || got[i].device() == neuron(0)) << what;
          expect_same_bits(expected[i], got[i], c10::str(what, " result ", i));
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << what << ": " << error.what();
      }
    });
  }
}

class OpsTest : public NeuronTest {};

TEST_F(OpsTest, Unary) { expect_equal_on_both(unary_groups()); }
TEST_F(OpsTest, Binary) { expect_equal_on_both(binary_groups()); }
TEST_F(OpsTest, ScalarsAndTypePromotion) {
  expect_equal_on_both(scalars_and_type_promotion_groups());
}
TEST_F(OpsTest, Reductions) { expect_equal_on_both(reductions_groups()); }
TEST_F(OpsTest, Products) { expect_equal_on_both(products_groups()); }
TEST_F(OpsTest, ShapesAndViews) { expect_equal_on_both(shapes_and_views_groups()); }
TEST_F(OpsTest, Indexing) { expect_equal_on_both(indexing_groups()); }
TEST_F(OpsTest, DataDependent) { expect_equal_on_both(data_dependent_groups()); }
TEST_F(OpsTest, NeuralNetwork) { expect_equal_on_both(neural_network_groups()); }
TEST_F(OpsTest, InPlaceAndOut) { expect_equal_on_both(in_place_and_out_groups()); }
TEST_F(OpsTest, Factories) { expect_equal_on_both(factories_groups()); }
TEST_F(OpsTest, FusedOptimizers) { expect_equal_on_both(fused_optimizers_groups()); }

}  // namespace
}  // namespace trellis::device::testing
