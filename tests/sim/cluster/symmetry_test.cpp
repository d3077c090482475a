#include "sim/cluster/symmetry.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/sim/cluster/job_builder.h"

namespace trellis::sim::testing {
namespace {

struct Mesh {
  int tp, dp, pp;
  [[nodiscard]] std::vector<int> sizes() const { return {tp, dp, pp}; }
  [[nodiscard]] int world() const { return tp * dp * pp; }
};

/// One step of a pipeline: each stage computes and sums over TP, hands on, and at the end sums over DP. Representatives only.
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
    std::vector<int> tp, dp;
    for (int t = 0; t < mesh.tp; ++t) tp.push_back(first + t);
    for (int d = 0; d < mesh.dp; ++d) dp.push_back(first + d * mesh.tp);
    const std::uint32_t tp_group = builder.group("tp", tp), dp_group = builder.group("dp", dp);
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      builder.compute(p, program);
      both(p, builder.comm(CollectiveKind::kAllReduce, tp_group, 3 << 20));
    }
    both(p, builder.comm(CollectiveKind::kAllReduce, dp_group, 5 << 20));
    if (p + 1 == mesh.pp) continue;
    const std::uint32_t send = builder.transfer(builder.group("pp", {first, first + stage}), first, first + stage, 2 << 20);
    builder.start(p, send);
    both(p + 1, send);
    builder.wait(p, send);
  }
  return job;
}

std::vector<ItemTiming> of_rank(const ClusterTiming& timing, const RankFold& fold, int rank) { return timing.ranks[static_cast<std::size_t>(fold.seat(rank))]; }

class Symmetry : public ::testing::TestWithParam<Mesh> {};

TEST_P(Symmetry, WhatIsFoldedTakesAsLongAsEveryRankForItself) {
  const Mesh mesh = GetParam();
  const SystemConfig system = load_system("trn1.32xlarge", std::max(1, mesh.world() / 32));
  Simulator simulator(system);
  const ClusterJob folded = folded_step(mesh);
  const RankFold equal = simulator.equal_ranks(folded);
  std::vector<int> everyone(static_cast<std::size_t>(mesh.world()));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::size_t> sources;
  const ClusterJob some = unfold(folded, equal, sources);
  EXPECT_EQ(sources.size(), equal.representatives().size());
  const ClusterJob all = unfold(folded, RankFold::with_classes(mesh.sizes(), everyone), sources);
  ASSERT_EQ(all.ranks.size(), everyone.size());
  const ClusterTiming short_way = simulator.run_cluster(some), long_way = simulator.run_cluster(all);
  EXPECT_EQ(short_way.makespan, long_way.makespan);
  for (const int rank : everyone) EXPECT_EQ(of_rank(short_way, equal, rank), long_way.ranks[static_cast<std::size_t>(rank)]) << rank;
}

INSTANTIATE_TEST_SUITE_P(Meshes, Symmetry,
                         ::testing::Values(Mesh{2, 2, 2}, Mesh{2, 4, 4}, Mesh{4, 2, 4}, Mesh{8, 4, 1}, Mesh{8, 4, 2}, Mesh{2, 3, 2}, Mesh{1, 8, 1}, Mesh{32, 2, 2}, Mesh{4, 32, 1}),
                         [](const auto& test) { return "tp" + std::to_string(test.param.tp) + "dp" + std::to_string(test.param.dp) + "pp" + std::to_string(test.param.pp); });

TEST(SymmetrySplits, ReplicasWhoseTransfersMeetOthersOnTheirWay) {
  const Mesh mesh{2, 2, 2};  // a stage holds two of a row's four chips
  const SystemConfig system = load_system("trn1.32xlarge");
  const RankFold equal = equal_ranks(folded_step(mesh), CommMachine(system));
  EXPECT_GT(equal.representatives().size(), 2U);
  EXPECT_EQ(equal.seat(0), equal.seat(1)) << "cores of one chip";
}

}  // namespace
}  // namespace trellis::sim::testing
