#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/config/overlay.h"
#include "sim/config/system_config.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

LoadOptions with(std::vector<std::string> overrides) {
  LoadOptions options;
  options.overrides = std::move(overrides);
  return options;
}

std::string error_of(const std::string& instance, const LoadOptions& options) {
  try {
    (void)load_system(instance, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

const Parameter& parameter(const SystemConfig& system, const std::string& key) {
  return *std::find_if(system.parameters.begin(), system.parameters.end(),
                       [&](const Parameter& p) { return p.key == key; });
}

TEST(Overlay, TheUsersValueReplacesTheFilesAndSaysWhatItReplaced) {
  const SystemConfig plain = load_system("trn2.48xlarge");
  const SystemConfig changed = load_system(
      "trn2.48xlarge", with({"chip.hbm_bandwidth=1 TB/s", "chip.hbm_bandwidth=2 TB/s"}));
  EXPECT_DOUBLE_EQ(changed.chip.hbm_bandwidth.value, 2e12);
  EXPECT_THAT(parameter(changed, "chip.hbm_bandwidth").source,
              HasSubstr("instead of " + parameter(plain, "chip.hbm_bandwidth").value));
  EXPECT_EQ(changed.parameters.size(), plain.parameters.size());
}

TEST(Overlay, AnUnknownKeyNamesTheNearest) {
  EXPECT_THAT(error_of("trn2.48xlarge", with({"chip.hbm_bandwith=1 TB/s"})),
              AllOf(HasSubstr("chip.hbm_bandwith"), HasSubstr("did you mean chip.hbm_bandwidth?")));
}

TEST(Overlay, AValueOfAnotherUnitIsRefused) {
  EXPECT_THAT(error_of("trn2.48xlarge", with({"chip.hbm_bandwidth=3 GHz"})),
              HasSubstr("--set chip.hbm_bandwidth"));
  EXPECT_THAT(error_of("trn2.48xlarge", with({"chip.hbm_bandwidth"})),
              HasSubstr("expected key=value"));
}

/// Zero rates divide, and tiny ones or long times leave the range of integer picoseconds.
TEST(Overlay, ANumberFarFromTheHardwareFilesIsRefused) {
  for (const char* text : {"chip.hbm_bandwidth=0 TB/s", "chip.hbm_bandwidth=1e-300 TB/s",
                           "chip.hbm_bandwidth=1e300 TB/s", "chip.physical_cores=0",
                           "core.dma.packet_descriptors=0"}) {
    EXPECT_THAT(error_of("trn2.48xlarge", with({text})),
                AllOf(HasSubstr("--set"), HasSubstr("at most 1000 times more or less")))
        << text;
  }
  EXPECT_THAT(error_of("trn2.48xlarge", with({"chip.hbm_bandwidth=0 TB/s"})),
              HasSubstr("hardware file's 2.9 TB/s, got '0 TB/s'"));
  EXPECT_THAT(error_of("trn2.48xlarge", with({"collectives.message_time=20 s"})),
              HasSubstr("expected a time from 0 to 10 s, got '20 s'"));
  EXPECT_THAT(error_of("trn2.48xlarge", with({"core.dma.priority_load=1e9"})),
              HasSubstr("core.dma.priority_load"));
  EXPECT_EQ(load_system("trn2.48xlarge", with({"collectives.message_time=0 us"}))
                .collectives.message_time.value,
            0);
  for (const char* text :
       {"chip.hbm_bandwidth=", "chip.hbm_bandwidth=[1]", "chip.hbm_bandwidth=null"}) {
    EXPECT_THAT(error_of("trn2.48xlarge", with({text})), HasSubstr("expected key=value")) << text;
  }
}

TEST(Overlay, ALogicalCoreIsOneOrTwoPhysicalOnes) {
  LoadOptions options;
  options.logical_core_size = 1;
  const SystemConfig physical = load_system("trn2.48xlarge", options);
  EXPECT_EQ(physical.logical_cores(), 128);
  EXPECT_EQ(physical.chip.core.sbuf.value, 28LL << 20);
  options.logical_core_size = 2;
  EXPECT_EQ(load_system("trn2.48xlarge", options).logical_cores(), 64);
  EXPECT_THAT(error_of("trn1.32xlarge", options), HasSubstr("logical core size"));
  options.logical_core_size = 3;
  EXPECT_THAT(error_of("trn2.48xlarge", options), HasSubstr("got 3"));
}

/// The shipped hardware files with a calibration of the test's own.
class FittedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trellis_overlay_" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "calibration");
    for (const auto& each : fs::directory_iterator(config_directory())) {
      if (each.path().extension() == ".yaml")
        fs::copy_file(each.path(), folder_ / each.path().filename(),
                      fs::copy_options::overwrite_existing);
    }
    ::setenv("TRELLIS_CONFIG_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TRELLIS_CONFIG_DIR");
    fs::remove_all(folder_);
  }
  void write(const std::string& parameters) const {
    std::ofstream(folder_ / "calibration/trn1.yaml") << "generation: trn1\nparameters:\n"
                                                     << parameters;
  }

  static std::string entry(const std::string& key, const std::string& value) {
    return "  " + key + ": {value: " + value +
           ", subject: kernels, range: \"1 - 2\", meaning: the meaning, origin: the script, "
           "fitted_on: [R1, R2]}\n";
  }

  fs::path folder_;
};

TEST_F(FittedFile, ReplacesANumberAndCarriesItsRows) {
  write(entry("chip.hbm_bandwidth", "800 GB/s"));
  const SystemConfig system = load_system("trn1.32xlarge");
  EXPECT_DOUBLE_EQ(system.chip.hbm_bandwidth.value, 800e9);
  const Parameter& p = parameter(system, "chip.hbm_bandwidth");
  EXPECT_EQ(p.evidence, Evidence::kCalibrated);
  EXPECT_THAT(p.source, AllOf(HasSubstr("the meaning"), HasSubstr("R1, R2"),
                              HasSubstr("instead of 820 GB/s")));
  LoadOptions published;
  published.calibrated = false;
  EXPECT_DOUBLE_EQ(load_system("trn1.32xlarge", published).chip.hbm_bandwidth.value, 820e9);
}

TEST_F(FittedFile, MayHoldEightParametersAndNoMore) {
  const std::vector<std::string> keys = {"core.tensor.min_cycles", "core.tensor.fixed_cycles",
                                         "core.vector.min_cycles", "core.vector.fixed_cycles",
                                         "core.scalar.min_cycles", "core.scalar.fixed_cycles",
                                         "core.gpsimd.min_cycles", "core.gpsimd.fixed_cycles"};
  std::string eight;
  for (const auto& key : keys) eight += entry(key, "64");
  write(eight);
  EXPECT_EQ(error_of("trn1.32xlarge", {}), "no error");
  write(eight + entry("core.dma.engines", "16"));
  EXPECT_THAT(error_of("trn1.32xlarge", {}), HasSubstr("9 fitted parameters"));
}

TEST_F(FittedFile, SaysWhatIsMissing) {
  write("  chip.hbm_bandwidth: {value: 800 GB/s, range: \"1 - 2\"}\n");
  EXPECT_THAT(error_of("trn1.32xlarge", {}),
              AllOf(HasSubstr("meaning"), HasSubstr("origin"), HasSubstr("fitted_on")));
}

}  // namespace
}  // namespace trellis::sim
