#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "device/driver/reports/attribution.h"
#include "device/driver/reports/step_report.h"
#include "device/driver/timing/cluster_job.h"
#include "device/driver/timing/kernel_advance.h"

namespace trellis::device {
namespace {

/// Two ranks, one program each with a wait in the middle; times are random but consistent.
struct Fixture {
  TimedPiece pieces[2];
  TimedProgram program;
  std::vector<Graph> graphs{Graph{}};
  StepStream streams[2];
  StepTiming step;

  Fixture(std::mt19937& random, const std::string& phase, const std::string& axis) {
    graphs[0].name = program.name = phase;
    graphs[0].nodes.resize(4);
    for (std::uint32_t n = 0; n < 4; ++n)
      graphs[0].nodes[n].scope.layer = fmt::format("model.layers.{}.mlp", n);
    for (TimedPiece& piece : pieces) {
      piece.kernels = {{"mm", 0, 0, false}, {"add", 0, 0, false}};
      piece.timing = std::make_shared<const sim::CoreTiming>(sim::CoreTiming{{segment(random)}});
    }
    program.steps = {{&pieces[0], 0, {}},
                     {nullptr, 1, {sim::isa::CommAction::kStart, 0}},
                     {nullptr, 2, {sim::isa::CommAction::kWait, 0}},
                     {&pieces[1], 3, {}}};
    for (auto& stream : streams) {
      stream.instances.push_back({0, 0, {0}, 0, 0});
      stream.comms.push_back({sim::CollectiveKind::kAllReduce, axis, {0, 1}, 41, 8, DType::kFp32});
    }
    step = lay_out_step({&streams[0], &streams[1]}, {&graphs, &graphs}, {2, {}},
                        [this](const Graph&) { return &program; });
    place(random);
  }

  static sim::SegmentTiming segment(std::mt19937& random) {
    std::uniform_int_distribution<std::int64_t> time(1, 1000);
    sim::SegmentTiming segment;
    segment.tensor_active = Picoseconds(time(random));
    segment.compute_only = Picoseconds(time(random));
    segment.dma_only = Picoseconds(time(random));
    segment.duration =
        segment.tensor_active + segment.compute_only + segment.dma_only + Picoseconds(time(random));
    for (std::uint8_t track = 0; track < sim::kNumTracks; ++track) {
      const Picoseconds start(time(random) % segment.duration.value),
          end(std::min(segment.duration.value, start.value + time(random)));
      segment.slices.push_back(
          {track % 2u, track, start, end, Picoseconds((end - start).value / 2), {}});
    }
    return segment;
  }

  /// During a communication segments take longer than alone.
  void place(std::mt19937& random) {
    std::uniform_int_distribution<std::int64_t> gap(0, 500);
    step.timing.comms.resize(step.job.comms.size());
    for (auto& comm : step.timing.comms) comm.ready = Picoseconds(gap(random) * 10);
    for (const auto& items : step.job.ranks) {
      std::vector<sim::ItemTiming> times;
      Picoseconds now(gap(random));
      for (const sim::ScheduleItem& item : items) {
        const bool segment = item.kind == sim::ScheduleItem::Kind::kSegment;
        const Picoseconds end =
            now + Picoseconds(gap(random)) +
            (segment ? step.job.programs[item.program]->segments[0].duration : Picoseconds());
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
    const std::string axis =
        std::array{"tp", "pp", "dp", "ep", "cp"}[static_cast<std::size_t>(i) % 5];
    const Fixture f(random, i % 2 == 0 ? "forward" : "optimizer", axis);
    for (const Breakdown& b : break_down(f.step)) {
      EXPECT_EQ(b.total(), f.step.timing.makespan);
      EXPECT_EQ((axis == "cp" ? b.exposed_dp : b.exposed_cp).value, 0) << "the ring is not DP";
      EXPECT_LE(b.memory_bound, b.other_compute);
      EXPECT_GE(b.bubble.value, 0);
      EXPECT_GE(b.exposed_pp.value, 0);
      EXPECT_EQ(b.optimizer.value > 0, i % 2 == 1);
    }
  }
}

TEST(StepReportTest, AttributionAddsUpToTheStepExactly) {
  std::mt19937 random(9);
  for (int i = 0; i < 200; ++i) {
    const std::string axis =
        std::array{"tp", "pp", "dp", "ep", "cp"}[static_cast<std::size_t>(i) % 5];
    const Fixture f(random, i % 2 == 0 ? "forward" : "optimizer", axis);
    const std::vector<Breakdown> breakdowns = break_down(f.step);
    const std::vector<Attribution> all =
        attribute(f.step, breakdowns, {&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs}, 64);
    ASSERT_EQ(all.size(), breakdowns[0] == breakdowns[1] ? 1u : 2u)
        << "equal ranks are attributed once";
    for (const Attribution& each : all) {
      Picoseconds parts;
      for (const AttributionRow& row : each.rows) parts += row.time;
      EXPECT_EQ(parts, f.step.timing.makespan);
    }
    EXPECT_EQ(
        attribute(f.step, breakdowns, {&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs}, 1)
            .size(),
        1u);
    const Attribution& attribution = all.front();
    Picoseconds sum, waited;
    std::set<std::string> kinds;
    for (const AttributionRow& row : attribution.rows) {
      EXPECT_GT(row.time.value, 0);
      EXPECT_GT(row.count, 0);
      sum += row.time;
      kinds.insert(row.kind);
      const bool wait = row.op == "all_reduce";
      if (wait) waited += row.time;
      const bool on_core = row.op == "mm" || row.op == "add";
      if (wait || on_core) {
        EXPECT_EQ(row.component, "model.layers.*.mlp");
      }
      if (on_core) {
        EXPECT_EQ(row.kind == "optimizer", i % 2 == 1);
      }
    }
    EXPECT_EQ(sum, f.step.timing.makespan);
    const std::size_t other = 1 - attribution.rank;
    EXPECT_GE(f.step.timing.ranks[attribution.rank].back().end,
              f.step.timing.ranks[other].back().end);
    const sim::ItemTiming& wait = f.step.timing.ranks[attribution.rank][3];
    EXPECT_EQ(waited, wait.end - wait.start);
    if (waited.value > 0 && axis != "pp") {
      EXPECT_TRUE(kinds.contains(axis == "ep" ? "comm_other" : "comm_" + axis));
    }
  }
}

TEST(StepReportTest, KernelAdvancesDoNotOverlapAndEndWithTheLastKernel) {
  std::mt19937 random(11);
  for (int i = 0; i < 100; ++i) {
    const sim::SegmentTiming segment = Fixture::segment(random);
    Picoseconds at, last;
    for (const KernelAdvance& advance : kernel_advances(segment)) {
      EXPECT_EQ(advance.from, at);
      at = advance.to;
    }
    for (const sim::KernelSlice& slice : segment.slices) last = std::max(last, slice.end);
    EXPECT_EQ(at, last);
  }
}

TEST(StepReportTest, AKernelIsBoundByMemoryWhenItsTransfersTakeLonger) {
  sim::SegmentTiming segment;
  const auto slice = [&](std::uint32_t kernel, int track, std::int64_t busy) {
    segment.slices.push_back({kernel,
                              static_cast<std::uint8_t>(track),
                              Picoseconds(0),
                              Picoseconds(10 * (kernel + 1)),
                              Picoseconds(busy),
                              {}});
  };
  slice(0, 0, 9);
  slice(0, sim::isa::kNumEngines, 5);
  slice(1, 0, 5);
  slice(1, sim::isa::kNumEngines, 9);
  slice(2, sim::isa::kNumEngines, 1);
  const std::vector<KernelAdvance> advances = kernel_advances(segment);
  ASSERT_EQ(advances.size(), 3u);
  EXPECT_FALSE(advances[0].bound_by_memory);
  EXPECT_TRUE(advances[1].bound_by_memory);
  EXPECT_TRUE(advances[2].bound_by_memory);
}

TEST(StepReportTest, CommunicationIsExposedWhileTheLastRankWaitsForItsTransfer) {
  std::mt19937 random(5);
  Fixture f(random, "forward", "dp");
  auto& ranks = f.step.timing.ranks;
  // Launch, segment, start, wait, segment: the wait of rank 1, which ends last, lasts from 400 to
  // 900; all are there at 300, bytes move until 700.
  const auto time = [](std::int64_t start, std::int64_t end) {
    return sim::ItemTiming{Picoseconds(start), Picoseconds(end)};
  };
  ranks[0] = {time(0, 0), time(0, 100), time(100, 100), time(100, 700), time(700, 800)};
  ranks[1] = {time(0, 0), time(0, 300), time(300, 300), time(400, 900), time(900, 1000)};
  f.step.timing.comms[0].ready = Picoseconds(300);
  f.step.timing.comms[0].end = Picoseconds(700);
  const nlohmann::json expected = {
      {"rank", 1},
      {"rows", {{{"axis", "dp"}, {"count", 1}, {"transfer_ps", 400}, {"exposed_ps", 300}}}},
      {"overlap", {{"moving_ps", 400}, {"computing_ps", 0}}}};
  EXPECT_EQ(communication(f.step), expected);
  ranks[1][1] = time(0, 450), ranks[1][4] = time(650, 1000);
  EXPECT_EQ(communication(f.step).at("overlap").at("computing_ps"), 150 + 50);
  ranks[1][3] = time(750, 900);
  EXPECT_EQ(communication(f.step).at("rows").at(0).at("exposed_ps"), 0)
      << "what it waits for has ended";
}

/// Operations that the host records before each program, and "r" where it reads a value first.
std::string launches_of(Fixture& f, const World& world) {
  f.program.coverage.lowered_ops = 4, f.program.coverage.estimated_ops = 1;
  const StepTiming step = lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs},
                                       world, [&](const Graph&) { return &f.program; });
  std::string text;
  for (const sim::ScheduleItem& item : step.job.ranks[0])
    if (item.kind == sim::ScheduleItem::Kind::kLaunch)
      text += fmt::format("{}{} ", item.after_read ? "r" : "", item.operations);
  return text;
}

/// Two micro-batches of a forward and a backward pass, and two programs of the optimizer.
Fixture two_micro_batches(const std::string& axis) {
  std::mt19937 random(3);
  Fixture f(random, "forward", axis);
  for (StepStream& stream : f.streams) {
    const GraphInstance pass = stream.instances[0];
    stream.instances.clear();
    for (const int microbatch : {0, 0, 1, 1, -1, -1}) {
      stream.instances.push_back(pass);
      stream.instances.back().microbatch = microbatch;
    }
  }
  return f;
}

TEST(StepReportTest, AMicroBatchIsRecordedAndLaunchedAsOneGraph) {
  Fixture f = two_micro_batches("dp");
  EXPECT_EQ(launches_of(f, {2, {}}), "10 0 10 0 10 0 ");
  EXPECT_EQ(launches_of(f, {2, {}, true}), "5 r5 5 r5 10 0 ") << "not across a read";
}

TEST(StepReportTest, APipelineLaunchesEachPassForItself) {
  Fixture f = two_micro_batches("pp");
  for (StepStream& stream : f.streams) stream.comms[0].kind = sim::CollectiveKind::kSendRecv;
  EXPECT_EQ(launches_of(f, {2, {}}), "5 5 5 5 5 5 ");
}

TEST(StepReportTest, JobKeyKnowsAReadOfTheHost) {
  Fixture f = two_micro_batches("dp");
  const auto key = [&](bool reads) {
    return job_key(lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs},
                                {2, {}, reads}, [&](const Graph&) { return &f.program; })
                       .job);
  };
  EXPECT_NE(key(false), key(true));
}

TEST(StepReportTest, JobKeyIgnoresAbsoluteSequences) {
  std::mt19937 random(3);
  Fixture f(random, "forward", "tp");
  const ContentHash before = job_key(f.step.job);
  for (auto& stream : f.streams) stream.comms[0].sequence += 100;
  const StepTiming later = lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs},
                                        {2, {}}, [&](const Graph&) { return &f.program; });
  EXPECT_EQ(job_key(later.job), before);
  for (auto& stream : f.streams) stream.comms[0].elements = 9;
  const StepTiming other = lay_out_step({&f.streams[0], &f.streams[1]}, {&f.graphs, &f.graphs},
                                        {2, {}}, [&](const Graph&) { return &f.program; });
  EXPECT_NE(job_key(other.job), before);
}

}  // namespace
}  // namespace trellis::device
