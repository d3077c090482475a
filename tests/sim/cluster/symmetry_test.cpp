#include "sim/cluster/symmetry.h"
#include "sim/cluster/comm_profiler.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/collectives/stage_steps.h"
#include "sim/config/load_system.h"
#include "tests/sim/cluster/job_builder.h"

namespace trellis::sim::testing {
namespace {

struct Mesh {
  int tp, dp, pp;
  int kv = 1;  ///< copies of key/value heads: every tp / kv-th rank has the same
  [[nodiscard]] std::vector<int> sizes() const { return {tp, dp, pp}; }
  [[nodiscard]] int world() const { return tp * dp * pp; }
};

/// One step of a pipeline: each stage computes and sums over TP, hands on, and at the end sums over
/// DP. Representatives only.
ClusterJob folded_step(const Mesh& mesh) {
  const int stage = mesh.tp * mesh.dp;
  JobBuilder builder(mesh.pp);
  ClusterJob& job = builder.job();
  job.cores.resize(static_cast<std::size_t>(mesh.world()));
  std::iota(job.cores.begin(), job.cores.end(), 0);
  job.fold = RankFold::along_axes(mesh.sizes(), {true, true, false});
  const std::uint32_t program = builder.program(Picoseconds(40'000'000), Bytes(1 << 20));
  const auto both = [&](int place, std::uint32_t comm) {
    builder.start(place, comm);
    builder.wait(place, comm);
  };
  for (int p = 0; p < mesh.pp; ++p) {
    const int first = p * stage;
    std::vector<int> tp, dp, kv;
    for (int t = 0; t < mesh.tp; ++t) tp.push_back(first + t);
    for (int c = 0; c < mesh.kv; ++c) kv.push_back(first + c * mesh.tp / mesh.kv);
    for (int d = 0; d < mesh.dp; ++d) dp.push_back(first + d * mesh.tp);
    const std::uint32_t tp_group = builder.group("tp", tp), dp_group = builder.group("dp", dp);
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      builder.compute(p, program);
      both(p, builder.comm(CollectiveKind::kAllReduce, tp_group, mesh.kv > 1 ? 32 << 20 : 3 << 20));
    }
    both(p, builder.comm(CollectiveKind::kAllReduce, dp_group, 5 << 20));
    if (mesh.kv > 1)
      both(p, builder.comm(CollectiveKind::kAllReduce, builder.group("kv", kv), 1 << 20));
    if (p + 1 == mesh.pp) continue;
    const std::uint32_t send = builder.transfer(builder.group("pp", {first, first + stage}), first,
                                                first + stage, 2 << 20);
    builder.start(p, send);
    both(p + 1, send);
    builder.wait(p, send);
  }
  return job;
}

std::vector<ItemTiming> of_rank(const ClusterTiming& timing, const RankFold& fold, int rank) {
  return timing.ranks[static_cast<std::size_t>(fold.seat(rank))];
}

class Symmetry : public ::testing::TestWithParam<Mesh> {};

/// Both ways give every rank the same times; returns how long the step is.
Picoseconds compare(const Mesh& mesh, const std::vector<std::string>& slow) {
  SystemConfig system = load_system("trn1.32xlarge", std::max(1, mesh.world() / 32));
  system.slow = read_slow_parts(slow, system, mesh.world());
  Simulator simulator(system);
  const ClusterJob folded = folded_step(mesh);
  const RankFold equal = simulator.equal_ranks(folded);
  std::vector<int> everyone(static_cast<std::size_t>(mesh.world()));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::size_t> sources;
  const ClusterJob some = unfold(folded, equal, sources);
  EXPECT_EQ(sources.size(), equal.representatives().size());
  const ClusterJob all = unfold(folded, RankFold::with_classes(mesh.sizes(), everyone), sources);
  EXPECT_EQ(all.ranks.size(), everyone.size());
  const ClusterTiming short_way = simulator.run_cluster(some),
                      long_way = simulator.run_cluster(all);
  EXPECT_EQ(short_way.makespan, long_way.makespan);
  for (const int rank : everyone)
    EXPECT_EQ(of_rank(short_way, equal, rank), long_way.ranks[static_cast<std::size_t>(rank)])
        << rank;
  return long_way.makespan;
}

TEST_P(Symmetry, WhatIsFoldedTakesAsLongAsEveryRankForItself) { compare(GetParam(), {}); }

TEST_P(Symmetry, SlowCoresSplitTheClassesByThemselves) {
  const int world = GetParam().world();
  const Picoseconds step = compare(GetParam(), {});
  const Picoseconds slow = compare(GetParam(), {"core:" + std::to_string(world - 1) + "=1.75"});
  EXPECT_GT(slow, step);
  EXPECT_GE(compare(GetParam(), {"core:0=3", "core:" + std::to_string(world / 2) + "=1.5"}), slow);
}

TEST_P(Symmetry, SlowLinksSplitTheClassesByThemselves) {
  const Picoseconds step = compare(GetParam(), {});
  EXPECT_GE(compare(GetParam(), {"link:node0.chip0.neuron_link_east=6"}), step);
  EXPECT_GE(compare(GetParam(), {"link:node0.chip1.neuron_link_south=9.5",
                                 "link:node0.chip0.core1.to_core0=2"}),
            step);
}

TEST_P(Symmetry, AFactorOfOneIsNothing) {
  EXPECT_EQ(compare(GetParam(), {"core:0=1", "link:node0.chip0.neuron_link_east=1.0"}),
            compare(GetParam(), {}));
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Symmetry,
    ::testing::Values(Mesh{2, 2, 2}, Mesh{2, 4, 4}, Mesh{4, 2, 4}, Mesh{8, 4, 1}, Mesh{8, 4, 2},
                      Mesh{2, 3, 2}, Mesh{1, 8, 1}, Mesh{32, 2, 2}, Mesh{4, 32, 1},
                      Mesh{16, 2, 1, 4}, Mesh{16, 2, 1, 2}, Mesh{8, 2, 2, 4}, Mesh{32, 1, 1, 4}),
    [](const auto& test) {
      return "tp" + std::to_string(test.param.tp) + "dp" + std::to_string(test.param.dp) + "pp" +
             std::to_string(test.param.pp) + "kv" + std::to_string(test.param.kv);
    });

TEST(SymmetrySplits, ReplicasWhoseTransfersMeetOthersOnTheirWay) {
  const Mesh mesh{2, 2, 2};  // a stage holds two of a row's four chips
  const SystemConfig system = load_system("trn1.32xlarge");
  const CommMachine machine(system);
  CommTraffic traffic(machine);
  const RankFold equal = equal_ranks(folded_step(mesh), machine, traffic);
  EXPECT_GT(equal.representatives().size(), 2U);
  EXPECT_EQ(equal.seat(0), equal.seat(1)) << "cores of one chip";
}

TEST(SymmetrySplits, ASlowLinkInTheWayMakesTheStepLonger) {
  EXPECT_GT(compare({4, 2, 4}, {"link:node0.chip0.neuron_link_east=6"}), compare({4, 2, 4}, {}));
}

std::string refusal(const std::string& text) {
  const SystemConfig system = load_system("trn1.32xlarge");
  try {
    static_cast<void>(read_slow_parts({text}, system, 32));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SlowParts, AreReadAsTheyAreWritten) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const SlowParts slow = read_slow_parts(
      {"core:3=1.5", "core:31=2", "link:node0.chip2.neuron_link_west=4", "core:4=1"}, system, 32);
  EXPECT_EQ(slow.cores, (std::map<int, double>{{3, 1.5}, {31, 2}}));
  ASSERT_EQ(slow.links.size(), 1U);
  EXPECT_EQ(Topology(system).link_name(slow.links.begin()->first), "node0.chip2.neuron_link_west");
  EXPECT_EQ(slow.links.begin()->second, 4);
}

TEST(SlowParts, RefusalsSayWhatIsExpectedAndWhatCame) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  for (const char* text : {"", "core", "core:1", "core=2", "1=2"})
    EXPECT_THAT(refusal(text), HasSubstr("expected KIND:NAME=FACTOR")) << text;
  EXPECT_THAT(refusal("chip:1=2"), HasSubstr("expected core or link, got \"chip\""));
  for (const char* text : {"core:32=2", "core:-1=2", "core:x=2", "core:=2", "core:1.5=2"})
    EXPECT_THAT(refusal(text), HasSubstr("expected a rank of 0 to 31")) << text;
  for (const char* text : {"core:1=0.5", "core:1=", "core:1=fast", "core:1=nan", "core:1=inf",
                           "core:1=-2", "core:1=2x"}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("expected a factor of 1 to 1000000"),
                                     HasSubstr("core:RANK=FACTOR")))
        << text;
  }
  EXPECT_THAT(refusal("link:node0.chip0.neuron_link_eats=2"),
              AllOf(HasSubstr("there is none on 1 x trn1.32xlarge"),
                    HasSubstr("node0.chip0.neuron_link_east")));
  const SystemConfig system = load_system("trn1.32xlarge");
  EXPECT_THROW(static_cast<void>(read_slow_parts({"core:1=2", "core:1=3"}, system, 32)),
               ConfigError);
}

}  // namespace
}  // namespace trellis::sim::testing
