#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/sim/cluster/job_builder.h"

namespace trellis::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::JobBuilder;
using testing::range;

constexpr Picoseconds kUs(1'000'000);

/// Time of one collective over the first `ranks` cores.
Picoseconds time_of(Simulator& simulator, CollectiveKind kind, int ranks, std::int64_t bytes) {
  JobBuilder b(ranks);
  b.all(b.comm(kind, b.group("world", range(0, ranks)), bytes));
  return simulator.run_cluster(b.job()).makespan;
}

std::string hang_of(Simulator& simulator, const ClusterJob& job) {
  try {
    (void)simulator.run_cluster(job);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kHang);
    return error.what();
  }
  return "no hang";
}

TEST(Cluster, AgreesWithTheCollectiveOnItsOwn) {
  const SystemConfig system = load_system("trn1.32xlarge", 2);
  Simulator simulator(system);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const int ranks : {2, 8, 32, 64}) {
      const auto in_a_job = static_cast<double>(time_of(simulator, kind, ranks, 8 << 20).value);
      const auto alone = static_cast<double>(
          simulator.time_collective({kind, range(0, ranks), Bytes(8 << 20), 1, {}}).time.value);
      EXPECT_NEAR(in_a_job, alone, 1e-6 * alone) << name(kind) << " " << ranks;
    }
  }
}

TEST(Cluster, StartsWhenTheLastMemberIsThere) {
  const SystemConfig system = load_system("trn1.32xlarge");
  Simulator simulator(system);
  JobBuilder b(4);
  const auto late = b.program(kUs * 500);
  const auto comm = b.comm(CollectiveKind::kAllReduce, b.group("tp", range(0, 4)), 1 << 20);
  b.compute(2, late);
  b.all(comm);
  const ClusterTiming t = simulator.run_cluster(b.job());
  EXPECT_EQ(t.comms[0].ready, kUs * 500);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(t.ranks[rank].back().end, t.comms[0].end);
  EXPECT_EQ(t.ranks[0].back().start.value, 0);  // waiting since its own start
}

TEST(Cluster, OverlapsCommunicationWithComputation) {
  Simulator simulator(load_system("trn1.32xlarge"));
  const auto alone = time_of(simulator, CollectiveKind::kAllReduce, 2, 64 << 20);
  JobBuilder b(2);
  const auto work = b.program(alone * 3);
  const auto comm = b.comm(CollectiveKind::kAllReduce, b.group("dp", range(0, 2)), 64 << 20);
  for (int rank = 0; rank < 2; ++rank) {
    b.start(rank, comm);
    b.compute(rank, work);
    b.wait(rank, comm);
  }
  const ClusterTiming t = simulator.run_cluster(b.job());
  EXPECT_EQ(t.makespan, alone * 3);
  EXPECT_EQ(t.ranks[0][2].start, t.ranks[0][2].end);  // nothing exposed
}

/// Two ranks: an all-reduce during a segment that uses this share of HBM, three times as long as
/// the all-reduce alone.
ClusterTiming concurrent(Simulator& simulator, const SystemConfig& system, double share,
                         Picoseconds alone, int length) {
  JobBuilder b(2);
  const Picoseconds duration = alone * length;
  const double hbm = system.chip.hbm_bandwidth.value / system.logical_cores_per_chip();
  const auto work =
      b.program(duration, Bytes(static_cast<std::int64_t>(share * hbm * to_seconds(duration))));
  const auto comm = b.comm(CollectiveKind::kAllReduce, b.group("dp", range(0, 2)), 64 << 20);
  for (int rank = 0; rank < 2; ++rank) {
    b.start(rank, comm);
    b.compute(rank, work);
    b.wait(rank, comm);
  }
  return simulator.run_cluster(b.job());
}

TEST(Cluster, ComputationAndCommunicationSlowEachOtherOnlyWhereTheyExceedTheMachine) {
  SystemConfig system = load_system("trn1.32xlarge");
  system.chip.core.dma.engine_rate = system.chip.core.dma.engine_rate * 100.0;  // HBM limits
  Simulator simulator(system);
  const auto alone = time_of(simulator, CollectiveKind::kAllReduce, 2, 64 << 20);
  const double demand = 2.5 * (64 << 20) / to_seconds(alone) /
                        (system.chip.hbm_bandwidth.value / 2);  // 2.5 touches of each byte
  for (const double share :
       {0.0, 0.3, 0.85 - demand}) {  // the reduction asks for more than the average
    const ClusterTiming t = concurrent(simulator, system, share, alone, 3);
    EXPECT_EQ(t.comms[0].end, alone) << share;
    EXPECT_EQ(t.makespan, alone * 3) << share;
  }
  for (const double share : {0.9, 1.0}) {
    for (const int length : {1, 3, 5}) {
      const ClusterTiming t = concurrent(simulator, system, share, alone, length);
      // While both run they take (share + demand) times as long; what is left runs alone.
      const double both = to_seconds(alone) * (share + demand);
      EXPECT_NEAR(to_seconds(t.comms[0].end), both, 0.01 * both) << share << " " << length;
      EXPECT_NEAR(to_seconds(t.makespan), both + to_seconds(alone) * (length - 1), 0.01 * both)
          << share << " " << length;
    }
  }
}

TEST(Cluster, OverlapNeverMakesAnythingFaster) {
  const SystemConfig system = load_system("trn1.32xlarge");
  Simulator simulator(system);
  const auto alone = time_of(simulator, CollectiveKind::kAllReduce, 2, 64 << 20);
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const ClusterTiming t = concurrent(simulator, system, tenth / 10.0, alone, 2);
    EXPECT_GE(t.comms[0].end, alone);
    EXPECT_GE(t.makespan, alone * 2);
    EXPECT_EQ(t.ranks[0][1].end, t.ranks[1][1].end);
  }
}

TEST(Cluster, CommunicationsOfOneGroupAreAStream) {
  Simulator simulator(load_system("trn1.32xlarge"));
  const auto alone = time_of(simulator, CollectiveKind::kAllReduce, 4, 1 << 20);
  JobBuilder b(4);
  const auto group = b.group("tp", range(0, 4));
  const auto first = b.comm(CollectiveKind::kAllReduce, group, 1 << 20);
  const auto second = b.comm(CollectiveKind::kAllReduce, group, 1 << 20);
  for (const auto comm : {first, second}) {
    for (int rank = 0; rank < 4; ++rank) b.start(rank, comm);
  }
  const ClusterTiming t = simulator.run_cluster(b.job());
  EXPECT_EQ(t.comms[first].end, alone);
  EXPECT_EQ(t.comms[second].end, alone * 2);
}

TEST(Cluster, CommunicationsThatShareLinksShareTheirBandwidth) {
  Simulator simulator(load_system("trn1.32xlarge"));
  const auto alone = time_of(simulator, CollectiveKind::kAllReduce, 4, 64 << 20);
  JobBuilder b(4);
  for (int i = 0; i < 2; ++i) {
    const auto comm = b.comm(CollectiveKind::kAllReduce, b.group("tp", range(0, 4)), 64 << 20);
    for (int rank = 0; rank < 4; ++rank) b.start(rank, comm);
  }
  for (std::uint32_t comm : {0u, 1u}) {
    for (int rank = 0; rank < 4; ++rank) b.wait(rank, comm);
  }
  const auto both = simulator.run_cluster(b.job()).makespan;
  EXPECT_GT(both.value, alone.value * 18 / 10);  // latencies overlap with the other one's transfers
  EXPECT_LT(both.value, alone.value * 21 / 10);
}

TEST(Cluster, TransfersNeedOnlyTheirSender) {
  const SystemConfig system = load_system("trn1.32xlarge");
  Simulator simulator(system);
  JobBuilder b(32);
  const auto late = b.program(kUs * 900);
  const auto send = b.transfer(b.group("pp", range(0, 32)), 0, 31, 64'000'000);
  b.compute(31, late);
  b.start(0, send);
  b.wait(0, send);
  b.start(31, send);
  b.wait(31, send);
  const ClusterTiming t = simulator.run_cluster(b.job());
  // 0 → chip 15 is two hops: west, then north.
  EXPECT_EQ(t.links.size(), 2u);
  EXPECT_EQ(t.comms[0].wire_bytes.value, 2 * 64'000'000);
  EXPECT_EQ(t.comms[0].end,
            system.launch.collective_start + system.collectives.step_time +
                system.collectives.message_time + system.instance.neuron_link.latency * 2 +
                transfer_time(Bytes(64'000'000), system.instance.neuron_link.bandwidth));
  EXPECT_EQ(t.makespan, t.comms[0].end > kUs * 900 ? t.comms[0].end : kUs * 900);
}

TEST(Cluster, BetweenInstancesEveryRanksShareOfEfaWorks) {
  const SystemConfig system = load_system("trn1.32xlarge", 2);
  Simulator simulator(system);
  const double bytes = 256e6;
  const auto time =
      static_cast<double>(time_of(simulator, CollectiveKind::kAllReduce, 64, 256'000'000).value);
  const double across = bytes / system.instance.efa_nics /
                        (system.instance.efa.bandwidth.value * system.collectives.efa_efficiency) *
                        1e12;  // 2(N−1)/N · S/L with N = 2
  // A KangaRing's carrier has a channel, an eighth of the engines' rate, on each of two cycles.
  const auto& dma = system.chip.core.dma;
  const double inside = bytes / (2 * dma.engine_rate.value * dma.engines / 8) * 1e12;
  EXPECT_GT(time, across + inside);
  EXPECT_LT(time, (across + inside) * 1.1);
}

TEST(Cluster, UltraServerNeighboursUseTheirOwnLinks) {
  Simulator simulator(load_system("trn2u.48xlarge", 4));
  JobBuilder b(256);
  const auto send = b.transfer(b.group("pp", range(0, 256)), 0, 64, 1 << 20);
  b.start(0, send);
  const ClusterTiming t = simulator.run_cluster(b.job());
  ASSERT_EQ(t.links.size(), 1u);
  EXPECT_EQ(t.links[0].name, "node0.chip0.neuron_link_up");
}

/// A release that has one execution in flight.
constexpr const char* kOneInFlight = "nxd@2.11";

struct Launch {
  std::int64_t operations = 0;
  bool after_read = false;
};

/// The time of programs of 10 µs that one rank executes.
Picoseconds span_of(const SystemConfig& system, const std::vector<Launch>& launches) {
  JobBuilder b(1);
  const auto program = b.program(kUs * 10);
  for (const Launch& launch : launches) {
    b.launch(0, program, launch.operations, launch.after_read);
    b.compute(0, program);
  }
  return Simulator(system).run_cluster(b.job()).makespan;
}

TEST(Cluster, LaunchesPayOnceForTheQueueAndEachForTheStart) {
  const SystemConfig system = load_system("trn1.32xlarge");
  Simulator simulator(system);
  JobBuilder b(1);
  const auto program = b.program(kUs * 10);
  for (int i = 0; i < 3; ++i) {
    b.launch(0, program);
    b.compute(0, program);
  }
  EXPECT_EQ(simulator.run_cluster(b.job()).makespan,
            system.launch.program_launch + system.launch.program_start * 3 + kUs * 30);
}

/// Programs of 10 µs, each recorded while the device executes the one before (one execution in
/// flight): each turn takes the longer of both, and the first is recorded before the step begins.
TEST(Cluster, AProgramWaitsUntilTheHostHasRecordedIt) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = kOneInFlight});
  system.software.trace_time = kUs;
  const Picoseconds turn = system.launch.program_start + kUs * 10,
                    first = system.launch.program_launch + turn;
  ASSERT_LT(turn, kUs * 30);
  EXPECT_EQ(span_of(system, {{500}, {2}, {2}, {2}}), first + turn * 3)
      << "recorded in less time than the device takes";
  EXPECT_EQ(span_of(system, {{1}, {90}, {90}, {90}}), kUs * 270 + turn)
      << "the last begins when it is recorded";
  EXPECT_EQ(span_of(system, {{1}, {90}, {2}, {2}}), kUs * 90 + turn * 3);
  EXPECT_EQ(span_of(system, {{1}, {2}, {2}, {90}}), first + turn + kUs * 90 + turn)
      << "the host had nothing recorded ahead: it waited to launch the program before";
  system.software = load_system("trn1.32xlarge").software;
  EXPECT_EQ(span_of(system, {{1}, {90}, {2}, {2}}), first + turn * 3) << "no one records";
}

TEST(Cluster, ProgramsOfOneGraphAreRecordedAndLaunchedTogether) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = kOneInFlight});
  system.software.trace_time = kUs;
  const Picoseconds turn = system.launch.program_start + kUs * 10;
  EXPECT_EQ(span_of(system, {{1}, {0}, {190}, {0}}), kUs * 190 + turn * 2);
}

TEST(Cluster, AReadLetsTheHostRecordOnlyAfterTheDevice) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = kOneInFlight});
  system.software.trace_time = kUs;
  const Picoseconds turn = system.launch.program_start + kUs * 10,
                    first = system.launch.program_launch + turn;
  EXPECT_EQ(span_of(system, {{1}, {4, true}}), first + kUs * 4 + turn);
  EXPECT_EQ(span_of(system, {{1}, {4, false}}), first + turn);
}

TEST(Cluster, FineTuningPaysForEachOperationBetweenTwoExecutions) {
  SystemConfig system = load_system("trn1.2xlarge", {.software = "optimum-neuron"});
  system.software.trace_time = kUs, system.software.launch_time = kUs * 3;
  system.software.execution_stretch = 1;
  const Picoseconds turn = system.launch.program_start + kUs * 10,
                    first = system.launch.program_launch + turn;
  EXPECT_EQ(span_of(system, {{1}, {2}, {0}}), kUs * 3 * 3 + first + turn * 2);
  system.software.executions_in_flight = 2;
  EXPECT_EQ(span_of(system, {{1}, {2}, {0}}), kUs * 3 + first + turn * 2)
      << "the second is launched while the first executes";
}

/// The host is ahead of the device by as many programs as may be in flight: it has recorded a long
/// one in the time of those before.
TEST(Cluster, MoreExecutionsInFlightHideWhatTheHostRecords) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = kOneInFlight});
  system.software.trace_time = kUs;
  const Picoseconds turn = system.launch.program_start + kUs * 10,
                    first = system.launch.program_launch + turn;
  const std::vector<Launch> launches = {{1}, {2}, {2}, {2}, {60}, {2}};
  const std::int64_t hidden = (turn * 3 - kUs * 6).value;  // since the first one was launched
  std::vector<Picoseconds> spans;
  for (const int in_flight : {1, 2, 4, 8}) {
    system.software.executions_in_flight = in_flight;
    spans.push_back(span_of(system, launches));
  }
  EXPECT_EQ(spans[0], first + turn * 3 + kUs * 60 + turn * 2 - turn) << "recorded in one turn";
  EXPECT_TRUE(std::ranges::is_sorted(spans, std::greater<>()));
  EXPECT_EQ(spans[2], spans[3]) << "no more than four are ever in flight";
  EXPECT_GE((spans[0] - spans[2]).value, hidden - (turn * 2).value);
}

TEST(Cluster, AReadAtTheEndOfAStepHasTheNextOneRecordedAfterIt) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = kOneInFlight});
  system.software.trace_time = kUs;
  const Picoseconds without = span_of(system, {{4}, {2}});
  system.software.reads_per_step = 1;
  EXPECT_EQ(span_of(system, {{4}, {2}}), without + kUs * 4);
}

TEST(Cluster, AStepPaysOnceForWhatItsSoftwareDoesBetweenSteps) {
  SystemConfig system = load_system("trn1.32xlarge", {.software = "megatron"});
  EXPECT_GT(system.software.step_overhead.value, 0);
  Picoseconds spans[2];
  for (Picoseconds& span : spans) {
    JobBuilder b(2);
    const auto program = b.program(kUs * 10);
    for (int i = 0; i < 6; ++i) {
      b.launch(i % 2, program);
      b.compute(i % 2, program);
    }
    span = Simulator(system).run_cluster(b.job()).makespan;
    system.software.step_overhead = Picoseconds();
  }
  EXPECT_EQ(
      spans[0],
      spans[1] + load_system("trn1.32xlarge", {.software = "megatron"}).software.step_overhead);
}

TEST(Cluster, NamesWhoIsMissing) {
  Simulator simulator(load_system("trn1.32xlarge"));
  JobBuilder b(4);
  const auto tp = b.group("tp", range(0, 4));
  const auto comm = b.comm(CollectiveKind::kAllReduce, tp, 1024);
  for (const int rank : {0, 1, 3}) {
    b.start(rank, comm);
    b.wait(rank, comm);
  }
  EXPECT_THAT(hang_of(simulator, b.job()),
              AllOf(HasSubstr("all_reduce #0 of \"tp\" [0, 1, 2, 3]"), HasSubstr("missing rank 2"),
                    HasSubstr("rank 2 has finished"), HasSubstr("rank 0, 1, 3 waits for it")));
}

TEST(Cluster, NamesTwoRanksThatWaitForEachOther) {
  Simulator simulator(load_system("trn1.32xlarge"));
  JobBuilder b(2);
  const auto pp = b.group("pp", range(0, 2));
  const auto down = b.transfer(pp, 0, 1, 64);
  const auto up = b.transfer(pp, 1, 0, 64);
  b.wait(0, up);
  b.start(0, down);
  b.wait(1, down);
  b.start(1, up);
  EXPECT_THAT(hang_of(simulator, b.job()),
              AllOf(HasSubstr("send_recv #0 of \"pp\" from rank 0 to rank 1"),
                    HasSubstr("rank 0 waits at item 0 for send_recv #1")));
}

TEST(Cluster, NamesADisagreement) {
  Simulator simulator(load_system("trn1.32xlarge"));
  JobBuilder b(2);
  const auto tp = b.group("tp", range(0, 2));
  const auto a = b.comm(CollectiveKind::kAllReduce, tp, 1024);
  const auto c = b.comm(CollectiveKind::kAllReduce, tp, 2048);
  b.job().comms[c].sequence = 0;
  b.start(0, a);
  b.start(1, c);
  EXPECT_THAT(hang_of(simulator, b.job()),
              AllOf(HasSubstr("disagree about communication #0 of group \"tp\""),
                    HasSubstr("1024 x 1"), HasSubstr("2048 x 1")));
}

TEST(Cluster, NamesADoubleStart) {
  Simulator simulator(load_system("trn1.32xlarge"));
  JobBuilder b(2);
  const auto comm = b.comm(CollectiveKind::kAllReduce, b.group("tp", range(0, 2)), 1024);
  b.all(comm);
  b.start(1, comm);
  EXPECT_EQ(hang_of(simulator, b.job()), "rank 1 starts all_reduce #0 of \"tp\" [0, 1] twice");
}

TEST(Cluster, SameJobTwiceGivesTheSameTiming) {
  Simulator simulator(load_system("trn1.32xlarge"));
  JobBuilder b(32);
  const auto work = b.program(kUs * 37);
  const auto world = b.group("world", range(0, 32));
  std::vector<std::uint32_t> tp;
  for (int g = 0; g < 4; ++g) tp.push_back(b.group("tp", range(8 * g, 8 * g + 8)));
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 32; ++rank) b.compute(rank, work);
    for (const auto group : tp) b.all(b.comm(CollectiveKind::kAllGather, group, 3'000'001 + i));
    b.all(b.comm(CollectiveKind::kAllReduce, world, 1 << 20));
  }
  const ClusterTiming first = simulator.run_cluster(b.job());
  const ClusterTiming second = simulator.run_cluster(b.job());
  EXPECT_EQ(first.makespan, second.makespan);
  EXPECT_EQ(first.comms, second.comms);
  EXPECT_EQ(first.ranks, second.ranks);
}

}  // namespace
}  // namespace trellis::sim
