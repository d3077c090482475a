#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/world.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {
namespace {

using testing::ElementsAre;

TEST(RankMesh, EightRanksAsInTheTable) {
  const RankMesh mesh{2, 2, 2};
  EXPECT_THAT(mesh.tp_ranks(5), ElementsAre(4, 5));
  EXPECT_THAT(mesh.dp_ranks(5), ElementsAre(5, 7));
  EXPECT_THAT(mesh.pp_ranks(5), ElementsAre(1, 5));
}

TEST(RankMesh, TheGroupsOfAnAxisPartitionTheWorld) {
  const RankMesh mesh{4, 3, 2};
  for (const auto ranks_of : {&RankMesh::tp_ranks, &RankMesh::pp_ranks, &RankMesh::dp_ranks}) {
    std::multiset<int> seen;
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < 24; ++rank) groups.insert((mesh.*ranks_of)(rank));
    for (const auto& group : groups) seen.insert(group.begin(), group.end());
    EXPECT_EQ(seen.size(), 24u);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 24u);
  }
}

TEST(RankMesh, CoordinatesAndRankAreInverse) {
  const RankMesh mesh{4, 3, 2};
  for (int rank = 0; rank < 24; ++rank) EXPECT_EQ(mesh.rank(mesh.pp_rank(rank), mesh.dp_rank(rank), mesh.tp_rank(rank)), rank);
}

TEST(ParallelState, EveryRankKnowsItsPlace) {
  runtime::WorldOptions world;
  world.world_size = 8;
  runtime::run_ranks(world, [](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 2, 2);
    EXPECT_EQ(state.get_tensor_model_parallel_size(), 2);
    EXPECT_EQ(state.get_pipeline_model_parallel_size(), 2);
    EXPECT_EQ(state.get_data_parallel_size(), 2);
    EXPECT_EQ((state.get_pipeline_model_parallel_rank() * 2 + state.get_data_parallel_rank()) * 2 + state.get_tensor_model_parallel_rank(),
              rank.rank());
    EXPECT_EQ(state.is_pipeline_first_stage(), rank.rank() < 4);
    EXPECT_EQ(state.is_pipeline_last_stage(), rank.rank() >= 4);
  });
}

TEST(ParallelState, AWorldThatDoesNotDivideIsTheUsersMistake) {
  runtime::WorldOptions world;
  world.world_size = 4;
  EXPECT_THROW(runtime::run_ranks(world, [](runtime::RankContext& rank) { ParallelState::initialize_model_parallel(rank, 3, 1); }), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
