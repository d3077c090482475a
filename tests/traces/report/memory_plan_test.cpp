// Verdicts on a node's own memory.
#include "traces/report/memory_plan.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trellis::analysis {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// One rank that fits easily, with `weights` bytes of parameters.
nlohmann::json memory_of(std::int64_t weights) {
  nlohmann::json at_peak = {{"parameter_bytes", weights}, {"gradient_bytes", 0},
                            {"optimizer_state_bytes", 0}, {"activation_bytes", 0},
                            {"temporary_bytes", 0},       {"input_bytes", 0}};
  nlohmann::json rank = {{"rank", 0},
                         {"represents", 32},
                         {"num_ooms", 0},
                         {"peak_bytes", weights},
                         {"peak_reserved_bytes", weights},
                         {"capacity_bytes", 16 * kGiB},
                         {"peak_phase", "forward"},
                         {"at_peak", at_peak},
                         {"phases", nlohmann::json::array()},
                         {"live_at_peak", nlohmann::json::array()},
                         {"largest_graph", {}}};
  return {{"schema", "trellis.memory/1"}, {"ranks", nlohmann::json::array({rank})}};
}

nlohmann::json host_of(int devices, int at_once, std::int64_t weights, std::int64_t batches,
                       std::int64_t capacity) {
  MemoryRunFacts facts;
  facts.name = "run";
  facts.instance = "trn1.32xlarge";
  facts.devices = facts.world_size = devices;
  facts.sequential_move_factor = at_once;
  facts.batch_bytes = batches;
  facts.host_memory_bytes = capacity;
  facts.software.name = "none";
  const nlohmann::json plan = memory_plan(facts, memory_of(weights));
  const std::string text = memory_plan_text(plan, false), verdict = plan.at("host").at("verdict");
  const char* const said = verdict == "fits"    ? "node: FITS:"
                           : verdict == "tight" ? "node: FITS, TIGHT:"
                                                : "node: DOES NOT FIT:";
  EXPECT_NE(text.find(said), std::string::npos) << text;
  return plan.at("host");
}

TEST(HostMemory, FitsWithTheProcessesThatArePublished) {
  const nlohmann::json host = host_of(32, 11, kGiB, 1 << 20, 512 * kGiB);
  EXPECT_EQ(host.at("verdict"), "fits");
  EXPECT_EQ(host.at("counted_bytes"), 11 * kGiB);
  EXPECT_EQ(host.at("batches_bytes"), 32 << 20);
  EXPECT_EQ(host.at("processes_bytes"), 270'000'000'000) << "5 GB x 32 processes + 110 GB";
}

TEST(HostMemory, IsTightWhenTheProcessesNeedWhatIsLeft) {
  EXPECT_EQ(host_of(32, 32, 10 * kGiB, 0, 512 * kGiB).at("verdict"), "tight");
  EXPECT_EQ(host_of(2, 2, 10 * kGiB, 0, 32 * kGiB).at("verdict"), "tight")
      << "the processes count by rank of a node";
}

TEST(HostMemory, DoesNotFitWhenWeightsOrSamplesAloneAreTooMany) {
  EXPECT_EQ(host_of(32, 32, 17 * kGiB, 0, 512 * kGiB).at("verdict"), "does_not_fit");
  EXPECT_EQ(host_of(32, 1, kGiB, 17 * kGiB, 512 * kGiB).at("verdict"), "does_not_fit");
  EXPECT_EQ(host_of(32, 1, 17 * kGiB, 0, 512 * kGiB).at("verdict"), "fits") << "one rank at a time";
}

}  // namespace
}  // namespace trellis::analysis
