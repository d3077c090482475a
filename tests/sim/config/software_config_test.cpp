// Training software by release: which numbers hold, and what a step takes of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "sim/config/load_software.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"

namespace trellis::sim {
namespace {

SoftwareConfig of(const std::string& software, std::vector<std::string> overrides = {}) {
  LoadOptions options;
  options.software = software;
  options.overrides = std::move(overrides);
  return load_system("trn1.32xlarge", options).software;
}

TEST(Software, ANumberHoldsUntilALaterReleaseHasAnother) {
  EXPECT_EQ(of("nxd@2.11").executions_in_flight, 1);
  EXPECT_EQ(of("nxd@2.12").executions_in_flight, 3) << "asynchronous execution";
  EXPECT_EQ(of("nxd@2.28").executions_in_flight, 3);
  EXPECT_EQ(of("nxd@2.31").executions_in_flight, 1) << "removed";
  EXPECT_LT(of("nxd@2.18").trace_time, of("nxd@2.17").trace_time) << "torch_xla 2.1";
  EXPECT_EQ(of("nxd@2.20").trace_time, of("nxd@2.18").trace_time);
  EXPECT_EQ(of("nxd").release, software_stack("nxd").default_release);
}

TEST(Software, NoneIsTheDevicesWorkAlone) {
  const SoftwareConfig none = of(kNoSoftware);
  EXPECT_EQ(none.recording(7), Picoseconds());
  EXPECT_EQ(none.launching(7), Picoseconds());
  EXPECT_EQ(none.step_overhead, Picoseconds());
  EXPECT_EQ(none.execution_stretch, 1);
  const SoftwareConfig tuned = of("optimum-neuron");
  EXPECT_EQ(tuned.recording(7), tuned.trace_time * 7);
  EXPECT_EQ(tuned.launching(7), tuned.launch_time * 7);
  EXPECT_GT(tuned.launch_time, Picoseconds());
}

TEST(Software, EveryReleaseOfEveryStackLoadsAndItsChangesHaveSources) {
  ASSERT_EQ(software_stacks().size(), 3U);
  for (const SoftwareStack& stack : software_stacks()) {
    for (const SoftwareRelease& release : stack.releases) {
      EXPECT_EQ(of(stack.name + "@" + release.name).release, release.name);
      for (const SoftwareChange& change : release.changed) {
        EXPECT_FALSE(change.source.empty()) << change.what;
        EXPECT_FALSE(change.effect.empty()) << change.what;
      }
    }
  }
}

TEST(Software, ItsNumbersHaveSourcesAndMayBeOverridden) {
  LoadOptions options;
  options.software = "megatron";
  const std::vector<Parameter> all = load_system("trn1.32xlarge", options).parameters;
  const auto overhead = std::ranges::find(all, "software.step_overhead", &Parameter::key);
  ASSERT_NE(overhead, all.end());
  EXPECT_EQ(overhead->evidence, Evidence::kCalibrated);
  options.calibrated = false;
  EXPECT_EQ(load_system("trn1.32xlarge", options).software.step_overhead, Picoseconds());
  EXPECT_EQ(of("nxd", {"software.executions_in_flight=2"}).executions_in_flight, 2);
  try {
    of(kNoSoftware, {"software.trace_time=1 us"});
    FAIL() << "no software has this number";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("software: STACK"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trellis::sim
