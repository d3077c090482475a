#include <random>

#include <gtest/gtest.h>

#include "device/driver/cluster_job.h"

namespace trellis::device {
namespace {

/// Two ranks, one program each with a wait in the middle; times are random but consistent.
struct Fixture {
  TimedProgram program;
  std::vector<Graph> graphs{Graph{}};
  StepStream streams[2];
  StepTiming step;

  Fixture(std::mt19937& random, const std::string& phase, const std::string& axis) {
    graphs[0].name = phase;
    std::uniform_int_distribution<std::int64_t> time(1, 1000);
    sim::CoreTiming core;
    for (int s = 0; s < 2; ++s) {
      sim::SegmentTiming segment;
      segment.tensor_active = Picoseconds(time(random));
      segment.compute_only = Picoseconds(time(random));
      segment.dma_only = Picoseconds(time(random));
      segment.duration = segment.tensor_active + segment.compute_only + segment.dma_only + Picoseconds(time(random));
      core.segments.push_back(segment);
    }
    program.timing = std::make_shared<const sim::CoreTiming>(core);
    program.compiled.program.segments.resize(2);
    program.compiled.program.segments[0].then = {{sim::isa::CommAction::kStart, 0}, {sim::isa::CommAction::kWait, 0}};
    for (auto& stream : streams) {
      stream.instances.push_back({0, 0, {0}, 0, 0});
      stream.comms.push_back({sim::CollectiveKind::kAllReduce, axis, {0, 1}, 41, 8, DType::kFp32});
    }
    step = lay_out_step({&streams[0], &streams[1]}, {&graphs, &graphs}, {2, {}}, [this](const Graph&) { return &program; });
    place(random);
  }

  void place(std::mt19937& random) {
    std::uniform_int_distribution<std::int64_t> gap(0, 500);
    step.timing.comms.resize(step.job.comms.size());
    for (auto& comm : step.timing.comms) comm.ready = Picoseconds(gap(random) * 10);
    for (const auto& items : step.job.ranks) {
      std::vector<sim::ItemTiming> times;
      Picoseconds now(gap(random));
      for (const sim::ScheduleItem& item : items) {
        const bool segment = item.kind == sim::ScheduleItem::Kind::kSegment;
        const Picoseconds end = now + (segment ? step.job.programs[0]->segments[item.segment].duration : Picoseconds(gap(random)));
        times.push_back({now, end});
        now = end + Picoseconds(gap(random) / 4);
      }
      step.timing.makespan = std::max(step.timing.makespan, now);
      step.timing.ranks.push_back(times);
    }
  }
};

TEST(StepReportTest, RanksRequestsMeetInOneCommunication) {
  std::mt19937 random(1);
  const Fixture f(random, "forward", "tp");
  ASSERT_EQ(f.step.job.comms.size(), 1u);
  EXPECT_EQ(f.step.job.comms[0].sequence, 0u) << "sequence numbers count from the step's first";
  EXPECT_EQ(f.step.job.groups[0].ranks, (std::vector<int>{0, 1}));
  ASSERT_EQ(f.step.job.ranks[0].size(), 5u);
}

TEST(StepReportTest, PartsAddUpToTheStepExactly) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::string axis = std::array{"tp", "pp", "dp"}[static_cast<std::size_t>(i) % 3];
    const Fixture f(random, i % 2 == 0 ? "forward" : "optimizer", axis);
    for (const Breakdown& b : break_down(f.step, {&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs})) {
      EXPECT_EQ(b.total(), f.step.timing.makespan);
      EXPECT_LE(b.memory_bound, b.other_compute);
      EXPECT_GE(b.bubble.value, 0);
      EXPECT_GE(b.exposed_pp.value, 0);
      EXPECT_EQ(b.optimizer.value > 0, i % 2 == 1);
    }
  }
}

TEST(StepReportTest, JobKeyIgnoresAbsoluteSequences) {
  std::mt19937 random(3);
  Fixture f(random, "forward", "tp");
  const ContentHash before = job_key(f.step.job);
  for (auto& stream : f.streams) stream.comms[0].sequence += 100;
  const StepTiming later = lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs}, {2, {}}, [&](const Graph&) { return &f.program; });
  EXPECT_EQ(job_key(later.job), before);
  for (auto& stream : f.streams) stream.comms[0].elements = 9;
  const StepTiming other = lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs}, {2, {}}, [&](const Graph&) { return &f.program; });
  EXPECT_NE(job_key(other.job), before);
}

}  // namespace
}  // namespace trellis::device
