#include "analysis/accuracy/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "analysis/accuracy/program_run.h"
#include "analysis/accuracy/replay_report.h"
#include "base/error.h"
#include "tests/sim/profile/small_profile.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using sim::samples::small_profile;

const std::filesystem::path kProfiles =
    std::filesystem::path(TRELLIS_SOURCE_DIR) / "benchmarks/published/profiles";
const char* const kNames[] = {"plain-bf16-512", "plain-fp32-1024", "fused-bf16-1024",
                              "fused-fp32-512"};

sim::Profile profile_of(const std::string& name) {
  return sim::read_profile(kProfiles / (name + ".json.xz"));
}

/// Errors of the published profiles; a change of a constant that makes them worse is seen here.
TEST(Replay, PublishedProfilesWithTransfersAsTraced) {
  for (const char* name : kNames) {
    const Replay r = replay(profile_of(name), {.explain = false});
    EXPECT_LE(std::abs(r.span_error()), 0.015) << name;
    EXPECT_LE(r.starts().median, 0.4) << name;
  }
}

TEST(Replay, PublishedProfilesWithModelledTransfers) {
  for (const char* name : kNames) {
    const Replay r =
        replay(profile_of(name), {.transfers = Transfers::kModelled, .explain = false});
    EXPECT_LE(std::abs(r.span_error()), 0.05) << name;
    EXPECT_LE(r.starts().median, 1.0) << name;
  }
}

TEST(Replay, SameTwiceAndWithALargerConstantLater) {
  const sim::Profile profile = profile_of("fused-fp32-512");
  const Replay first = replay(profile, {.explain = false}),
               second = replay(profile, {.explain = false});
  EXPECT_EQ(replay_json(first).dump(), replay_json(second).dump());
  const Replay slow =
      replay(profile, {.overrides = {"core.vector.interval_cycles=600"}, .explain = false});
  EXPECT_GT(slow.model_span, first.model_span);
}

/// The program's text, timed, is what the replay with modelled transfers executes.
TEST(Replay, TextOfTheProgramTakesAsLong) {
  sim::Profile profile = profile_of("fused-fp32-512");
  profile.clock.clear();  // a text has no place in the clock's grid
  const auto machine = replay_machine("trn2.3xlarge", {});
  const auto imported = sim::import_program(profile, machine.chip.core.limits);
  const Replay r = replay(profile, {.transfers = Transfers::kModelled, .explain = false});
  const ProgramRun run = run_program(print(imported.program), "p", "trn2.3xlarge", {});
  const double edges =
      to_microseconds(machine.launch.profiled_start) + to_microseconds(machine.launch.profiled_end);
  EXPECT_NEAR(r.model_span, edges + to_microseconds(run.segments.front().duration), 1e-6);
}

TEST(Replay, BothTracesAreInOneTimeline) {
  const Replay r = replay(profile_of("fused-fp32-512"), {.explain = false});
  const traces::Timeline timeline = replay_timeline(r);
  ASSERT_EQ(timeline.processes().size(), 2u);
  EXPECT_LT(timeline.processes()[0].sort_index, timeline.processes()[1].sort_index);
  EXPECT_EQ(timeline.num_slices(), 2 * (r.instructions.size() + r.queues.size()));
}

/// The constant that is named, once set, leaves as much as was said.
TEST(Replay, NamedConstantLeavesLess) {
  const sim::Profile profile = profile_of("fused-fp32-512");
  const std::string wrong = "core.tensor.fixed_cycles=900";
  const Replay r = replay(profile, {.overrides = {wrong}});
  ASSERT_FALSE(r.left.key.empty());
  const Replay better =
      replay(profile, {.overrides = {wrong, r.left.key + "=" + r.left.better}, .explain = false});
  EXPECT_NEAR(better.mean_error(), (1 - r.left.explains) * r.mean_error(), 1e-9);
}

std::string refusal(const std::function<void(json&)>& change, const ReplayOptions& options,
                    ExitCode expected) {
  json document = small_profile();
  change(document);
  try {
    (void)replay(sim::parse_profile(document.dump(), "p.json"), options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  return "";
}

TEST(BadReplay, AnotherGeneration) {
  const auto same = [](json&) {};
  EXPECT_NE(refusal(same, {.instance = "trn1.2xlarge"}, ExitCode::kConfig)
                .find("summary[0].instance_type: the profile is of trn2.3xlarge"),
            std::string::npos);
  const auto inf2 = [](json& p) { p["summary"][0]["instance_type"] = "inf2.xlarge"; };
  EXPECT_NE(refusal(inf2, {}, ExitCode::kConfig).find("got \"inf2.xlarge\""), std::string::npos);
}

/// Scalar waits for Vector and Vector for Scalar: both are named with their instructions.
TEST(BadReplay, SemaphoresInACircle) {
  const auto circle = [](json& p) {
    p["instruction"].push_back(sim::samples::instruction("Vector", 50, 3000, 20, "EVENT_SEMAPHORE",
                                                         " S[4]>=1 S[6]++@complete"));
    p["instruction"][4]["operands"] =
        " S[6]>=1 S[4] (Scalar)++@complete src=fp32@0x2000000[1][128] dst=fp32@0x4000[1][128] "
        "channels=128";
  };
  const std::string text = refusal(circle, {}, ExitCode::kHang);
  EXPECT_NE(text.find("(scalar pc 30 COPY)"), std::string::npos) << text;
  EXPECT_NE(text.find("(vector pc 50 EVENT_SEMAPHORE)"), std::string::npos) << text;
}

}  // namespace
}  // namespace trellis::analysis
