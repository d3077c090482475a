#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SystemConfig, EveryShippedInstanceLoads) {
  for (const auto& instance : instance_names()) {
    const int nodes = load_system(instance).instance.has_efa ? 2 : 1;
    const SystemConfig s = load_system(instance, nodes);
    EXPECT_EQ(s.nodes, nodes);
    EXPECT_GT(s.logical_cores(), 0) << instance;
    EXPECT_GT(s.chip.core.tensor.clock.value, 0) << instance;
    EXPECT_GT(s.instance.neuron_link.bandwidth.value, 0) << instance;
    EXPECT_GT(s.chip.core.limits.sbuf_bytes_per_partition, 0) << instance;
  }
  EXPECT_THAT(instance_names(),
              ::testing::IsSupersetOf({"trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge",
                                       "trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"}));
}

/// Published totals that the files do not contain themselves: they check the per-core numbers.
TEST(SystemConfig, AddsUpToThePublishedInstanceTotals) {
  const SystemConfig trn1 = load_system("trn1.32xlarge");
  EXPECT_EQ(trn1.logical_cores(), 32);
  EXPECT_NEAR(trn1.peak_per_logical_core().value * 32, 3.04e15, 0.05 * 3.04e15);
  EXPECT_EQ(trn1.hbm_per_logical_core().value, 16LL << 30);
  EXPECT_NEAR(trn1.instance.efa.bandwidth.value * trn1.instance.efa_nics * 8, 800e9, 1);
  const SystemConfig trn2 = load_system("trn2.48xlarge");
  EXPECT_EQ(trn2.logical_cores(), 64);
  EXPECT_NEAR(trn2.peak_per_logical_core().value * 64, 10.7e15, 0.07 * 10.7e15);
  EXPECT_EQ(trn2.hbm_per_logical_core().value, 24LL << 30);
  EXPECT_NEAR(trn2.instance.efa.bandwidth.value * trn2.instance.efa_nics * 8, 3200e9, 1);
}

TEST(SystemConfig, PeakIsWhatTheTensorClockGives) {
  for (const auto& instance : instance_names()) {
    const SystemConfig s = load_system(instance);
    EXPECT_NEAR(s.peak_per_logical_core().value, 128 * 128 * 2 * s.chip.core.tensor.clock.value,
                0.001 * s.peak_per_logical_core().value)
        << instance;
  }
}

TEST(SystemConfig, ALogicalCoreHasTwiceTheRatesAndHalfOfTheEnginesLatencies) {
  const SystemConfig s = load_system("trn2.48xlarge");
  const CoreConfig& core = s.chip.core;
  EXPECT_EQ(core.dma.engines, 32);
  EXPECT_EQ(core.sbuf.value, 56LL << 20);
  EXPECT_DOUBLE_EQ(core.scalar.clock.value, 2.4e9);
  LoadOptions options;
  options.logical_core_size = 1;
  const CoreConfig physical = load_system("trn2.48xlarge", options).chip.core;
  EXPECT_DOUBLE_EQ(core.scalar.fixed_cycles / core.scalar.clock.value * 2,
                   physical.scalar.fixed_cycles / physical.scalar.clock.value);
  EXPECT_EQ(core.dma.fixed_latency, physical.dma.fixed_latency);
}

TEST(SystemConfig, ProgramsTakeLongerOnSeveralInstancesAndBySoftware) {
  const SystemConfig one = load_system("trn1.32xlarge"), two = load_system("trn1.32xlarge", 2),
                     tuned = load_system("trn1.2xlarge",
                                         {.overrides = {"software.execution_stretch=1.2"},
                                          .software = "optimum-neuron"});
  EXPECT_EQ(one.program_stretch(), 1);
  EXPECT_EQ(two.program_stretch(), two.network.multi_node_stretch);
  EXPECT_GT(two.program_stretch(), 1);
  EXPECT_EQ(tuned.program_stretch(), 1.2);
  EXPECT_EQ(tuned.optimizer_stretch(), 1);
  EXPECT_EQ(two.optimizer_stretch(), two.network.multi_node_stretch);
}

/// The constant from which an estimate is copied may be fitted again.
TEST(SystemConfig, WhatTrn3TakesFromTrn2IsTrn2sNumber) {
  const std::vector<Parameter> trn2 = load_system("trn2.48xlarge").parameters;
  int copied = 0;
  for (const Parameter& p : load_system("trn3-gen1").parameters) {
    if (p.source != "as Trn2") continue;
    const auto original = std::find_if(trn2.begin(), trn2.end(),
                                       [&](const Parameter& other) { return other.key == p.key; });
    ASSERT_NE(original, trn2.end()) << p.key;
    EXPECT_EQ(p.value, original->value) << p.key;
    ++copied;
  }
  EXPECT_GT(copied, 15);
}

TEST(SystemConfig, SeveralInstancesNeedEfa) {
  EXPECT_FALSE(load_system("trn1.2xlarge").instance.has_efa);
  EXPECT_TRUE(load_system("trn1.32xlarge", 4).instance.has_efa);
  try {
    (void)load_system("trn1.2xlarge", 2);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("instance trn1.2xlarge: it has no EFA"),
                                    HasSubstr("expected 1 node, got 2; use 1 node")));
  }
}

TEST(SystemConfig, UnknownInstanceNamesTheNearest) {
  try {
    (void)load_system("trn1.32xlrage");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("\"trn1.32xlrage\""), HasSubstr("did you mean trn1.32xlarge?")));
  }
}

/// A copy of the shipped folder in which one text is replaced.
class BrokenConfig : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trellis_config_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    ::unsetenv("TRELLIS_CONFIG_DIR");
  }

  std::string error_after(const std::string& from, const std::string& to) {
    std::ifstream in(TRELLIS_SOURCE_DIR "/sim/configs/trn1.yaml");
    std::stringstream text;
    text << in.rdbuf();
    std::string content = text.str();
    const auto at = content.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    content.replace(at, from.size(), to);
    std::ofstream(folder_ / "trn1.yaml") << content;
    ::setenv("TRELLIS_CONFIG_DIR", folder_.c_str(), 1);
    try {
      (void)load_system("trn1.32xlarge");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(BrokenConfig, ABareNumberIsRefused) {
  EXPECT_THAT(error_after("value: 2.8 GHz", "value: 2.8"),
              AllOf(HasSubstr("trn1.yaml:"), HasSubstr("core.tensor.clock")));
}

TEST_F(BrokenConfig, ANumberWithoutItsMappingIsRefused) {
  EXPECT_THAT(
      error_after(
          "hbm: {value: 32 GiB, source: \"SDK trainium.rst, device memory\", evidence: spec}",
          "hbm: 32 GiB"),
      AllOf(HasSubstr("trn1.yaml:"), HasSubstr("chip.hbm")));
}

TEST_F(BrokenConfig, AMissingSourceIsRefused) {
  EXPECT_THAT(error_after("source: \"SDK trainium.rst, device memory\", ", ""),
              AllOf(HasSubstr("trn1.yaml:"), HasSubstr("chip.hbm.source")));
}

TEST_F(BrokenConfig, AnUnknownEvidenceIsRefused) {
  EXPECT_THAT(error_after("evidence: spec", "evidence: specs"),
              AllOf(HasSubstr("got \"specs\""), HasSubstr("did you mean spec?")));
}

TEST_F(BrokenConfig, AnEstimateWithoutRangeIsRefused) {
  EXPECT_THAT(error_after("evidence: estimated, range: \"15 - 50 ns\"", "evidence: estimated"),
              HasSubstr("core.semaphore_latency.range"));
}

TEST_F(BrokenConfig, AnUnknownKeyIsRefused) {
  EXPECT_THAT(error_after("  ramp_start", "  ramp_stat"),
              AllOf(HasSubstr("ramp_stat"), HasSubstr("core.tensor.ramp_start")));
}

TEST(SystemConfig, AnUltraServerIsWholeAPairOrASingleNode) {
  for (const char* instance : {"trn2u.48xlarge", "trn3-gen1"}) {
    for (const int nodes : {1, 2, 4, 8, 16}) EXPECT_EQ(load_system(instance, nodes).nodes, nodes);
    for (const int nodes : {3, 5, 6}) {
      try {
        (void)load_system(instance, nodes);
        ADD_FAILURE() << "expected a ConfigError for " << nodes;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(instance), HasSubstr(std::to_string(nodes) + " nodes"),
                          HasSubstr("multiple of 4")));
      }
    }
  }
  EXPECT_EQ(load_system("trn2.48xlarge", 3).nodes, 3);
  EXPECT_EQ(load_system("trn3-gen2", 5).nodes, 5);  // all to all: no wire is missing
}

TEST(SystemConfig, AClusterHasOneToSixteenThousandNodes) {
  for (const int nodes : {0, -1, 16385, std::numeric_limits<int>::max()}) {
    EXPECT_THAT([&] { (void)load_system("trn2.48xlarge", nodes); },
                ::testing::ThrowsMessage<ConfigError>(HasSubstr("expected 1 to 16384 nodes")))
        << nodes;
  }
}

TEST(SystemConfig, TheNetworkIsNotFasterThanItsNics) {
  LoadOptions options;
  options.overrides = {"network.oversubscription=2"};
  EXPECT_DOUBLE_EQ(load_system("trn2.48xlarge", options).network.oversubscription, 2);
  options.overrides = {"network.oversubscription=0.5"};
  try {
    (void)load_system("trn2.48xlarge", options);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("network.oversubscription"), HasSubstr("0.5")));
  }
}

TEST_F(BrokenConfig, AFabricIsATorusOrASwitch) {
  EXPECT_THAT(error_after("fabric: {value: torus,", "fabric: {value: tours,"),
              AllOf(HasSubstr("trn1.yaml:"), HasSubstr("fabric"), HasSubstr("torus or switch"),
                    HasSubstr("tours")));
}

TEST_F(BrokenConfig, AnInterconnectThatDoesNotAddUpIsRefused) {
  EXPECT_THAT(error_after("torus_rows: {value: 4", "torus_rows: {value: 3"),
              HasSubstr("the torus has 3 x 4"));
  EXPECT_THAT(error_after("efa_nics: {value: 8", "efa_nics: {value: 7"),
              HasSubstr("expected a divisor of the 16 chips"));
  EXPECT_THAT(error_after("\"0 1 4 5 8 9 12 13\"", "\"0 1 4 5 8 9 12 16\""),
              HasSubstr("expected chips from 0 to 15, got \"16\""));
}

TEST_F(BrokenConfig, ALinkStatesItsUnitAndItsSource) {
  EXPECT_THAT(
      error_after("efa_nic_bandwidth: {value: 100 Gbps", "efa_nic_bandwidth: {value: 100 GHz"),
      AllOf(HasSubstr("efa_nic_bandwidth"), HasSubstr("100 GHz")));
  EXPECT_THAT(
      error_after("oversubscription: {value: 1, source", "oversubscription: {value: 1, sauce"),
      HasSubstr("network.oversubscription.source"));
}

TEST_F(BrokenConfig, AnUltraServerNeedsTheRateOfItsLinks) {
  EXPECT_THAT(
      error_after(
          "efa_nics: {value: 8",
          "ultraserver_nodes: {value: 4, source: x, evidence: spec}\n    efa_nics: {value: 8"),
      HasSubstr("ultraserver_link_bandwidth: is missing"));
}

}  // namespace
}  // namespace trellis::sim
