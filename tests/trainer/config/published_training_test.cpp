// The configurations of the published training steps: legal, simulated as they are, and of the
// published layouts.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/parameter_count.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {
namespace {

struct Published {
  int tp, pp, dp, micro_batches, sequence;
  double billions;  ///< of the layers and the head: what a token is multiplied with
};

const std::map<std::string, Published> kRuns = {
    {"G6-1", {8, 1, 4, 16, 2048, 6.648}},       {"G23", {8, 4, 32, 32, 2048, 22.961}},
    {"B08", {8, 4, 4, 32, 2048, 22.961}},       {"N7-16", {8, 1, 64, 4, 4096, 6.607}},
    {"B06", {8, 1, 16, 16, 4096, 6.607}},       {"B07", {8, 1, 16, 4, 4096, 6.607}},
    {"X7", {8, 1, 64, 16, 4096, 6.607}},        {"X13-PP8", {8, 8, 16, 64, 4096, 12.852}},
    {"X70-PP4", {32, 4, 8, 128, 4096, 68.713}}, {"X38", {32, 1, 32, 32, 8192, 7.504}},
    {"B04", {32, 1, 16, 64, 8192, 7.504}},      {"X370", {32, 8, 4, 256, 8192, 69.502}},
    {"B1-1", {1, 1, 32, 32, 128, 0.333}},       {"B1L-16", {1, 1, 512, 128, 128, 0.333}},
    {"B1F-16", {1, 1, 512, 256, 128, 0.333}},   {"B2-16", {1, 1, 512, 512, 512, 0.333}},
    {"V64", {1, 1, 32, 1, 197, 0.085}},         {"E01", {4, 1, 1024, 1, 4096, 6.607}},
    {"C01", {2, 1, 1, 8, 2048, 7.504}},         {"C05", {2, 1, 1, 8, 2048, 7.568}},
    {"C06", {4, 1, 1, 8, 2048, 7.504}},         {"C08", {4, 1, 1, 8, 8192, 7.504}},
    {"D01", {1, 1, 1, 2, 1024, 0.362}},         {"D02", {1, 1, 1, 2, 1024, 0.362}},
    {"D03", {1, 1, 1, 2, 1024, 0.386}},         {"D05", {1, 1, 1, 8, 512, 3.213}},
    {"D08", {2, 1, 1, 8, 1024, 7.504}},
};

std::string published_file(const std::string& id) {
  return std::string(TRELLIS_SOURCE_DIR) + "/benchmarks/published/training/" + id + ".yaml";
}

TEST(PublishedTraining, EveryFileIsInTheTable) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(published_file("x")).parent_path())) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    EXPECT_TRUE(kRuns.contains(entry.path().stem().string())) << entry.path();
  }
  EXPECT_EQ(files, kRuns.size());
}

TEST(PublishedTraining, HasThePublishedLayoutsAndSizes) {
  for (const auto& [id, run] : kRuns) {
    SCOPED_TRACE(id);
    const RunCheck check = check_run_config(published_file(id), {});
    ASSERT_THAT(check.problems, testing::IsEmpty());
    EXPECT_NO_THROW(refuse_unsupported(check.config, /*simulate=*/true));
    const RunConfig& config = check.config;
    EXPECT_EQ((std::vector{config.tp(), config.pp(), config.dp(), config.num_microbatches(),
                           config.model.encoder_seq_length}),
              (std::vector{run.tp, run.pp, run.dp, run.micro_batches, run.sequence}));
    const ParameterCounts counts = count_parameters(config.model);
    double multiplied = static_cast<double>(counts.head + counts.token_head);
    for (int layer = 0; layer < config.model.num_layers; ++layer)
      multiplied += static_cast<double>(counts.layer(config.model, layer));
    EXPECT_NEAR(multiplied / 1e9, run.billions, 0.008 * run.billions);
    EXPECT_EQ(load_text(config.resolved_yaml), config) << config.resolved_yaml;
  }
}

/// Separate layers each have an A.
TEST(PublishedTraining, AdaptersOfGateAndUpFollowTheLayers) {
  const RunConfig fused = check_run_config(published_file("C01"), {}).config;
  const RunConfig separate =
      check_run_config(published_file("C01"), {"model.fuse_gate_up=false"}).config;
  ASSERT_TRUE(fused.model.lora.has_value());
  EXPECT_THAT(separate.unsupported, testing::IsEmpty());
  EXPECT_EQ(count_parameters(separate.model).layer(separate.model, 0) -
                count_parameters(fused.model).layer(fused.model, 0),
            std::int64_t{fused.model.lora->rank} * fused.model.hidden_size);
}

}  // namespace
}  // namespace trellis::trainer
