#include "sim/neuron_core/tensor_pipeline.h"
#include "sim/config/load_system.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace trellis::sim {
namespace {

TensorEngineConfig without_ramp() {
  TensorEngineConfig c;
  c.ramp_time = Picoseconds(0);
  c.ramp_start = 1;
  return c;
}

TensorEngineConfig with_ramp() {
  TensorEngineConfig c;
  c.ramp_time = Picoseconds(3'000'000);
  c.ramp_start = 0.5;
  return c;
}

TensorEngineConfig with_clock() {
  TensorEngineConfig c;
  c.ramp_start = 0.5;
  c.clock_window = Picoseconds(3'413'333);
  c.clock_up = 0.40;
  c.clock_down = 0.33;
  return c;
}

/// One product of `work` at the start of each of `count` iterations, which take as long as the
/// product or `least`. When the last one ends.
std::int64_t iterate(TensorPipeline& p, std::int64_t count, std::int64_t work, std::int64_t least,
                     bool in_loop) {
  std::int64_t now = 0;
  if (in_loop) p.loop_opened(0, now);
  for (std::int64_t i = 0; i < count; ++i) {
    now = std::max(p.stream(now, work).end, now + least);
    if (in_loop) p.loop_closed(0, now);
  }
  return now;
}

TEST(TensorPipeline, WeightLoadsOverlapTheRunningMatmul) {
  TensorPipeline p;
  p.configure(without_ramp());
  p.reset(0);
  std::int64_t issue = p.load(0, 100).next_issue;
  std::int64_t end = 0;
  for (int i = 0; i < 10; ++i) {
    const auto mm = p.stream(issue, 500);
    const auto next = p.load(mm.next_issue, 100);
    EXPECT_EQ(next.begin, next.end);  // nothing of it is visible
    issue = next.next_issue;
    end = mm.end;
  }
  EXPECT_EQ(end, 100 + 10 * 500);
}

TEST(TensorPipeline, LongWeightLoadsAreExposed) {
  TensorPipeline p;
  p.configure(without_ramp());
  p.reset(0);
  auto issue = p.load(0, 100).next_issue;
  const auto first = p.stream(issue, 30);
  const auto load = p.load(first.next_issue, 100);
  EXPECT_EQ(load.end - load.begin, 70);
  EXPECT_EQ(p.stream(load.next_issue, 30).begin, 200);
}

TEST(TensorPipeline, RampsUpAtTheStartOfABusyPhase) {
  TensorPipeline p;
  p.configure(with_ramp());
  p.reset(0);
  // The whole ramp allows 0.75 · 3 µs of work; it ends exactly there.
  EXPECT_EQ(p.stream(0, 2'250'000).end, 3'000'000);
  EXPECT_EQ(p.stream(3'000'000, 1'000'000).end, 4'000'000);
}

TEST(TensorPipeline, CuttingTheWorkDoesNotChangeTheRamp) {
  TensorPipeline whole;
  whole.configure(with_ramp());
  whole.reset(0);
  TensorPipeline cut;
  cut.configure(with_ramp());
  cut.reset(0);
  std::int64_t end = 0;
  for (int i = 0; i < 20; ++i) end = cut.stream(end, 200'000).end;
  EXPECT_NEAR(static_cast<double>(end), static_cast<double>(whole.stream(0, 4'000'000).end), 20);
}

TEST(TensorPipeline, APauseStartsTheRampAgain) {
  TensorPipeline p;
  p.configure(with_ramp());
  p.reset(0);
  (void)p.stream(0, 4'000'000);
  const std::int64_t end = p.stream(4'750'000, 100'000).end;
  EXPECT_EQ(p.stream(end + 1'000'000, 100'000).end, end + 1'100'000);  // short pause: full rate
  EXPECT_GT(p.stream(end + 9'000'000, 100'000).end, end + 9'150'000);
}

/// The documents judge utilisation over any window, so many small pauses keep the ramp down as one
/// long one does.
TEST(TensorPipeline, ALowDutyCycleNeverLeavesTheStartOfTheRamp) {
  TensorPipeline p;
  p.configure(with_ramp());
  p.reset(0);
  for (int i = 0; i < 100; ++i) {
    const auto slot = p.stream(i * 1'000'000, 213'000);
    EXPECT_GT(slot.end - slot.begin, 370'000);
    EXPECT_LT(slot.end - slot.begin, 427'000);
  }
}

TEST(TensorPipeline, AHighDutyCycleKeepsTheFullRate) {
  TensorPipeline p;
  p.configure(with_ramp());
  p.reset(0);
  std::int64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    const auto slot = p.stream(i * 300'000, 213'000);
    last = slot.end - slot.begin;
  }
  EXPECT_EQ(last, 213'000);
}

/// The windows of a loop follow its iterations, those of straight code a grid. Away from the
/// thresholds by what an iteration adds to a window both reach the same state, and what they differ
/// by is one window at most.
TEST(TensorPipeline, AClockInALoopIsThatOfStraightCode) {
  for (const std::int64_t least : {50'000, 170'000, 410'000, 1'130'000, 2'900'000, 9'700'000}) {
    for (const double duty : {0.05, 0.15, 0.25, 0.45, 0.6, 0.8, 1.0}) {
      const auto work = static_cast<std::int64_t>(duty * static_cast<double>(least));
      const std::int64_t count = 200'000'000 / least;
      TensorPipeline grid, loop;
      for (auto* p : {&grid, &loop}) {
        p->configure(with_clock());
        p->reset(0);
      }
      const auto straight = static_cast<double>(iterate(grid, count, work, least, false));
      const auto looped = static_cast<double>(iterate(loop, count, work, least, true));
      const bool changes_inside = least > 2'000'000;  // each iteration has its own changes
      EXPECT_NEAR(looped, straight, changes_inside ? 0.08 * straight : 3'413'333)
          << least << " ps, " << duty;
    }
  }
}

/// The property that makes loops skippable: after some iterations everything is as it was, whatever
/// the phase that the loop began with.
TEST(TensorPipeline, AClockInALoopIsPeriodic) {
  for (const std::int64_t least : {61'000, 700'001, 3'413'333, 12'345'678}) {
    for (const double duty : {0.1, 0.35, 0.5, 0.9}) {
      TensorPipeline p;
      p.configure(with_clock());
      p.reset(0, 1'234'567);
      std::int64_t now = 0;
      std::set<std::vector<std::int64_t>> seen;
      bool again = false;
      p.loop_opened(0, now);
      for (int i = 0; i < 400 && !again; ++i) {
        const auto work = static_cast<std::int64_t>(duty * static_cast<double>(least));
        now = std::max(p.stream(now, work).end, now + least);
        p.loop_closed(0, now);
        std::vector<std::int64_t> state;
        p.append_state(state, now);
        again = !seen.insert(state).second;
      }
      EXPECT_TRUE(again) << least << " ps, " << duty;
    }
  }
}

/// Trn1: 7/8 of the time, after 8 µs that a pause earned.
TEST(TensorPipeline, LimitedActivityHasACreditThatPausesEarn) {
  TensorEngineConfig c = without_ramp();
  c.activity_limit = 0.875;
  c.activity_burst = Picoseconds(8'000'000);
  TensorPipeline p;
  p.configure(c);
  p.reset(0);
  std::int64_t end = 0;
  for (int i = 0; i < 80; ++i) end = p.stream(end, 100'000).end;
  EXPECT_EQ(end, 8'000'000);  // the credit
  EXPECT_EQ(p.stream(end, 7'000'000).end, 16'000'000);
  // A pause of 7 µs would earn six times the credit; it holds 1 µs of work above the limit.
  EXPECT_EQ(p.stream(23'000'000, 8'000'000).end, 31'000'000);
  EXPECT_EQ(p.stream(31'000'000, 700'000).end, 31'800'000);
  // At 87 % there is no limit.
  for (std::int64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(p.stream(40'000'000 + i * 1'000'000, 870'000).end, 40'870'000 + i * 1'000'000);
}

/// Published (AGENT V0): 8,192 matmuls that wait for DMA in 8,602 µs keep TensorE active for 4,806
/// µs: half the rate, and each its latency.
TEST(TensorPipeline, StarvedMatmulsOfTrn2TakeTheirPublishedTime) {
  LoadOptions options;
  options.logical_core_size = 1;
  const TensorEngineConfig config = load_system("trn2.48xlarge", options).chip.core.tensor;
  TensorPipeline p;
  p.configure(config);
  p.reset(0);
  const std::int64_t work = cycles_time(512 + config.overhead_cycles, config.clock).value;
  const std::int64_t latency = cycles_time(config.fixed_cycles, config.clock).value;
  std::int64_t active = 0;
  for (std::int64_t i = 0; i < 8192; ++i) {
    const auto slot = p.stream(i * 1'050'000, work);
    active += slot.end + latency - slot.next_issue;  // the fill too
  }
  EXPECT_NEAR(static_cast<double>(active), 4806e6, 0.1 * 4806e6);
}

}  // namespace
}  // namespace trellis::sim
