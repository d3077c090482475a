#include "sim/collectives/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/cluster/comm_machine.h"
#include "sim/config/load_system.h"

namespace trellis::sim {
namespace {

std::vector<int> first_ranks(int ranks, int step = 1) {
  std::vector<int> cores;
  for (int i = 0; i < ranks; ++i) cores.push_back(i * step);
  return cores;
}

std::string choice(const CommMachine& machine, const std::vector<int>& cores, std::int64_t bytes,
                   CollectiveKind kind = CollectiveKind::kAllReduce) {
  return describe(choose_algorithm(kind, machine.layout(cores), Bytes(bytes), machine.selection()));
}

TEST(Selection, FollowsTheThresholdsInsideANode) {
  const CommMachine trn2(load_system("trn2.48xlarge"));
  EXPECT_EQ(choice(trn2, first_ranks(64), 1 << 20), "mesh");
  EXPECT_EQ(choice(trn2, first_ranks(64), (1 << 20) + 1), "rdh");
  EXPECT_EQ(choice(trn2, first_ranks(64), 56'000'000), "rdh");
  EXPECT_EQ(choice(trn2, first_ranks(64), 56'000'001), "kangaring");
  EXPECT_EQ(choice(trn2, first_ranks(16, 4), 64 << 20), "ring");  // one core of each chip
  EXPECT_EQ(choice(trn2, first_ranks(4), 256), "single_step_mesh");
  EXPECT_EQ(choice(trn2, first_ranks(4), 256, CollectiveKind::kAllGather), "mesh");
}

/// The thresholds are those of a rank's part (T1: 32 ranks leave the mesh above 4 MiB, 8 ranks have
/// left it there; T7: 16 ranks have left the mesh at 2 MiB and rdh at 32 MiB).
TEST(Selection, ThresholdsOfAGroupFollowItsChips) {
  const CommMachine trn1(load_system("trn1.32xlarge"));
  EXPECT_EQ(choice(trn1, first_ranks(32), 4 << 20), "mesh");
  EXPECT_EQ(choice(trn1, first_ranks(8), 1 << 20), "mesh");
  EXPECT_EQ(choice(trn1, first_ranks(8), 4 << 20), "rdh");
  EXPECT_EQ(choice(trn1, first_ranks(8), 16 << 20), "ring");  // one cycle: no gain from pairs
  EXPECT_EQ(choice(trn1, first_ranks(2), 4 << 20), "mesh");
  const CommMachine trn2(load_system("trn2.48xlarge"));
  EXPECT_EQ(choice(trn2, first_ranks(16), 128 << 10), "mesh");
  EXPECT_EQ(choice(trn2, first_ranks(16), 2 << 20), "rdh");
  EXPECT_EQ(choice(trn2, first_ranks(16), 32 << 20), "ring");
}

TEST(Selection, GroupsOverSeveralNodesAreHierarchical) {
  const CommMachine machine(load_system("trn2.48xlarge", 4));
  EXPECT_EQ(choice(machine, first_ranks(256), 64 << 20),
            "hierarchical (kangaring inside, ring across)");
  EXPECT_EQ(choice(machine, first_ranks(256), 4 << 20), "hierarchical (rdh inside, rdh across)");
  EXPECT_EQ(choice(machine, first_ranks(256), 4 << 10), "hierarchical (mesh inside, mesh across)");
  EXPECT_EQ(choice(machine, first_ranks(192), 4 << 20),
            "hierarchical (rdh inside, ring across)");               // three nodes are no hypercube
  EXPECT_EQ(choice(machine, first_ranks(4, 64), 64 << 20), "ring");  // one rank of each node
  EXPECT_EQ(choice(machine, first_ranks(256), 64 << 20, CollectiveKind::kBroadcast), "ring");
  EXPECT_EQ(choice(machine, first_ranks(256), 64 << 20, CollectiveKind::kAllToAll), "mesh");
}

TEST(Selection, RowsPrintTheThresholds) {
  const auto table = rows({Bytes(512), Bytes(1'000'000), Bytes(4 << 20)});
  std::string all;
  for (const auto& row : table) all += row.algorithm + " " + row.sizes + "\n";
  EXPECT_THAT(all, ::testing::AllOf(::testing::HasSubstr("single_step_mesh up to 512 B"),
                                    ::testing::HasSubstr("mesh up to 1 MB"),
                                    ::testing::HasSubstr("rdh up to 4 MiB")));
}

TEST(Selection, NamesRoundTrip) {
  for (int a = 0; a < kNumAlgorithms; ++a)
    EXPECT_EQ(parse_algorithm(std::string(name(static_cast<Algorithm>(a)))),
              static_cast<Algorithm>(a));
  EXPECT_THROW((void)parse_algorithm("kanga"), ConfigError);
}

}  // namespace
}  // namespace trellis::sim
