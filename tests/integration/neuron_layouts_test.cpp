// Eight emulated NeuronCores train what one CPU rank trains.
#include <gtest/gtest.h>

#include "runtime/groups/device_plugin.h"
#include "tests/integration/layout_run.h"

namespace trellis::trainer::neuron_layouts_test {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

constexpr std::int64_t kSteps = 20;

runtime::WorldOptions emulated(int world_size) {
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const std::string options =
      R"({"schema": "trellis.device_options/1", "instance": "trn1.32xlarge", )"
      R"("nodes": 1, "world_size": )" +
      std::to_string(world_size) + R"(, "shape_only": false, "record": true})";
  plugin.check(plugin.api().configure(options.c_str()));
  runtime::WorldOptions world;
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  return world;
}

struct Case {
  const char* precision;
  double tolerance;
};

class NeuronLayouts : public testing::TestWithParam<Case> {};

TEST_P(NeuronLayouts, EightEmulatedCoresEqualOneCpuRank) {
  const auto& [precision, tolerance] = GetParam();
  const Layout layout{2, 2, 2, true, true};
  const Outcome one_rank = train(small_llama({}, precision, kSteps), {});
  const Outcome outcome =
      train(small_llama(layout, precision, kSteps), layout, emulated(layout.world_size()));
  ASSERT_EQ(outcome.steps.size(), static_cast<std::size_t>(kSteps));
  const double error = worst_error(outcome, one_rank);
  RecordProperty("worst_relative_error", std::to_string(error));
  EXPECT_LE(error, tolerance);
  EXPECT_TRUE(outcome.replicas_equal);
}

INSTANTIATE_TEST_SUITE_P(Precisions, NeuronLayouts,
                         testing::Values(Case{"fp64", 1e-10}, Case{"fp32", 1e-5}),
                         [](const auto& test) { return std::string(test.param.precision); });

}  // namespace
}  // namespace trellis::trainer::neuron_layouts_test
