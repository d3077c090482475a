#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer::parallel_state_test {
namespace {

using testing::ElementsAre;

TEST(RankMesh, EightRanksAsInTheTable) {
  const RankMesh mesh{2, 2, 2};
  EXPECT_THAT(mesh.tp_ranks(5), ElementsAre(4, 5));
  EXPECT_THAT(mesh.dp_ranks(5), ElementsAre(5, 7));
  EXPECT_THAT(mesh.pp_ranks(5), ElementsAre(1, 5));
}

TEST(RankMesh, SixteenRanksWithContextParallelismAsInTheFormula) {
  const RankMesh mesh{.tp = 2, .pp = 2, .dp = 2, .cp = 2};  // rank = ((pp·2 + dp)·2 + cp)·2 + tp
  const auto text = [&](ParallelAxis axis) {
    return replica_groups_text(mesh.replica_groups(axis));
  };
  EXPECT_EQ(text(ParallelAxis::kTensor),
            "[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]");
  EXPECT_EQ(text(ParallelAxis::kContext),
            "[[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]");
  EXPECT_EQ(text(ParallelAxis::kData),
            "[[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]");
  EXPECT_EQ(text(ParallelAxis::kPipeline),
            "[[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]]");
  EXPECT_EQ(text(ParallelAxis::kZero1Sharding),
            "[[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]");
  EXPECT_EQ(text(ParallelAxis::kEmbedding), text(ParallelAxis::kPipeline))
      << "two stages: first and last are all";
  EXPECT_EQ(text(ParallelAxis::kWorld), "[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]");
}

TEST(RankMesh, TheExpertViewReusesTheDataParallelRanks) {
  const RankMesh mesh{.tp = 2, .pp = 1, .dp = 4, .cp = 1, .ep = 2};  // rank = (edp·2 + ep)·2 + tp
  EXPECT_EQ(mesh.edp(), 2);
  EXPECT_EQ(replica_groups_text(mesh.replica_groups(ParallelAxis::kExpert)),
            "[[0, 2], [1, 3], [4, 6], [5, 7]]");
  EXPECT_EQ(replica_groups_text(mesh.replica_groups(ParallelAxis::kExpertData)),
            "[[0, 4], [1, 5], [2, 6], [3, 7]]");
}

TEST(RankMesh, CopiesOfFullyShardedWeightsTakeConsecutiveDataParallelRanks) {
  // Each of two copies has dp 0 and 1, or 2 and 3; expert ranks lie within a copy.
  const RankMesh mesh{.tp = 2, .dp = 4, .ep = 2, .fsdp_replicas = 2};
  const auto text = [&](ParallelAxis axis) {
    return replica_groups_text(mesh.replica_groups(axis));
  };
  EXPECT_EQ(text(ParallelAxis::kFsdpSharding), "[[0, 2], [1, 3], [4, 6], [5, 7]]");
  EXPECT_EQ(text(ParallelAxis::kExpertFsdpSharding), "[[0], [1], [2], [3], [4], [5], [6], [7]]");
  EXPECT_EQ(text(ParallelAxis::kFsdpReplicas), "[[0, 4], [1, 5], [2, 6], [3, 7]]");
}

TEST(RankMesh, TheEmbeddingGroupIsTheFirstAndTheLastStage) {
  const RankMesh mesh{.tp = 1, .pp = 4, .dp = 2};
  EXPECT_EQ(replica_groups_text(mesh.replica_groups(ParallelAxis::kEmbedding)),
            "[[0, 6], [1, 7], [2], [3], [4], [5]]");
}

TEST(RankMesh, TheGroupsOfEveryAxisPartitionTheWorld) {
  for (const RankMesh& mesh :
       {RankMesh{4, 3, 2}, RankMesh{2, 2, 2, 2, 4}, RankMesh{1, 1, 6, 2, 3}, RankMesh{8, 1, 1},
        RankMesh{2, 5, 1, 1, 1}, RankMesh{2, 1, 4, 2, 2, 2}}) {
    for (const ParallelAxis axis : kParallelAxes) {
      std::multiset<int> seen;
      for (const auto& group : mesh.replica_groups(axis)) {
        seen.insert(group.begin(), group.end());
        for (const int rank : group) EXPECT_EQ(mesh.ranks(axis, rank), group);
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(mesh.world_size())) << name_of(axis);
      EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size()) << name_of(axis);
    }
  }
}

TEST(RankMesh, CoordinatesAndRankAreInverse) {
  const RankMesh mesh{4, 3, 2, 2, 4};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(
        mesh.rank(mesh.pp_rank(rank), mesh.dp_rank(rank), mesh.tp_rank(rank), mesh.cp_rank(rank)),
        rank);
    EXPECT_EQ(
        ((mesh.pp_rank(rank) * mesh.edp() + mesh.edp_rank(rank)) * mesh.ep + mesh.ep_rank(rank)) *
                mesh.tp +
            mesh.tp_rank(rank),
        rank);
  }
}

TEST(RankMesh, KeyValueCopiesAreNeighboursOrOneStrideDistant) {
  const RankMesh mesh{.tp = 8, .pp = 2};
  EXPECT_THAT(mesh.kv_shared_ranks(13, 2, ReplicaOrder::kAdjacent), ElementsAre(12, 13));
  EXPECT_THAT(mesh.kv_shared_ranks(13, 2, ReplicaOrder::kInterleaved), ElementsAre(9, 13));
  EXPECT_THAT(mesh.kv_shared_ranks(6, 4, ReplicaOrder::kInterleaved), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(mesh.kv_shared_ranks(6, 1, ReplicaOrder::kInterleaved), ElementsAre(6));
}

TEST(RankMesh, TokensAreShuffledAmongConsecutiveDataParallelRanks) {
  const RankMesh mesh{.tp = 2, .dp = 4};
  EXPECT_THAT(mesh.token_shuffle_ranks(5, 2), ElementsAre(5, 7));
  EXPECT_THAT(mesh.token_shuffle_ranks(2, 2), ElementsAre(0, 2));
}

struct Misfit {
  const char* name;
  ParallelSizes sizes;
  int world;
  std::vector<std::string> said;
};

class Misfits : public testing::TestWithParam<Misfit> {};

TEST_P(Misfits, AreErrorsWithTheirNumbersAndNeverClamped) {
  try {
    static_cast<void>(make_rank_mesh(GetParam().sizes, GetParam().world));
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    for (const std::string& part : GetParam().said)
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Misfits,
    testing::Values(Misfit{"tp_beyond_the_world",
                           {.tensor_model_parallel_size = 8},
                           4,
                           {"a multiple of 8 · 1 · 1 = 8", "got 4"}},
                    Misfit{"pp_beyond_the_world",
                           {.pipeline_model_parallel_size = 8},
                           4,
                           {"a multiple of 1 · 8 · 1 = 8", "got 4"}},
                    Misfit{"cp_beyond_the_world",
                           {.context_parallel_size = 8},
                           4,
                           {"context_parallel_size", "got 4"}},
                    Misfit{"product",
                           {.tensor_model_parallel_size = 4, .pipeline_model_parallel_size = 3},
                           8,
                           {"4 · 3 · 1 = 12", "got 8"}},
                    Misfit{"ep",
                           {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 3},
                           8,
                           {"a divisor of data", "= 4", "got 3"}},
                    Misfit{"ep_beyond_the_world",
                           {.expert_model_parallel_size = 16},
                           8,
                           {"expert_model_parallel_size", "got 16"}},
                    Misfit{"kv",
                           {.tensor_model_parallel_size = 8, .kv_size_multiplier = 3},
                           8,
                           {"kv_replicator", "a divisor of 8", "got 3"}},
                    Misfit{"shuffle",
                           {.token_shuffle_group_size = 3},
                           8,
                           {"token_shuffle_group_size", "a divisor of 8", "got 3"}},
                    Misfit{"copies",
                           {.data_parallel_replicate_size = 3},
                           8,
                           {"data_parallel_replicate_size", "a divisor of 8", "got 3"}},
                    Misfit{"ep_of_copies",
                           {.expert_model_parallel_size = 4, .data_parallel_replicate_size = 4},
                           8,
                           {"/ data_parallel_replicate_size = 2", "got 4"}},
                    Misfit{"zero",
                           {.tensor_model_parallel_size = 0},
                           8,
                           {"tensor_model_parallel_size", "at least 1", "got 0"}},
                    Misfit{"negative", {.kv_size_multiplier = -2}, 8, {"kv_replicator", "got -2"}},
                    Misfit{"overflow",
                           {.tensor_model_parallel_size = 65536,
                            .pipeline_model_parallel_size = 65536},
                           8,
                           {"4294967296", "got 8"}},
                    Misfit{"two_at_once",
                           {.tensor_model_parallel_size = 3, .kv_size_multiplier = 2},
                           8,
                           {"got 8", "kv_replicator"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ParallelState, ContextAndExpertGroupsWorkAndMessagesSayWho) {
  runtime::WorldOptions world;
  world.world_size = 8;
  runtime::run_ranks(world, [](runtime::RankContext& rank) {
    const ParallelState state =
        ParallelState::initialize_model_parallel(rank, {.tensor_model_parallel_size = 2,
                                                        .context_parallel_size = 2,
                                                        .expert_model_parallel_size = 2,
                                                        .kv_size_multiplier = 2,
                                                        .data_parallel_replicate_size = 2});
    const RankMesh mesh{2, 1, 2, 2, 2, 2};
    const auto sum_of = [&](const ParallelGroup& group) {
      return all_reduce(at::full({1}, rank.rank(), at::kLong), group).item<std::int64_t>();
    };
    const auto expected = [&](ParallelAxis axis) {
      const auto ranks = mesh.ranks(axis, rank.rank());
      return std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
    };
    EXPECT_EQ(sum_of(state.get_context_model_parallel_group()), expected(ParallelAxis::kContext));
    EXPECT_EQ(sum_of(state.get_expert_model_parallel_group()), expected(ParallelAxis::kExpert));
    EXPECT_EQ(sum_of(state.get_expert_data_parallel_group()), expected(ParallelAxis::kExpertData));
    EXPECT_EQ(sum_of(state.get_zero1_sharding_group()), expected(ParallelAxis::kZero1Sharding));
    EXPECT_EQ(sum_of(state.get_fsdp_sharding_group()), expected(ParallelAxis::kFsdpSharding));
    EXPECT_EQ(sum_of(state.get_fsdp_sharding_group(/*of_experts=*/true)),
              expected(ParallelAxis::kExpertFsdpSharding));
    EXPECT_EQ(sum_of(state.get_fsdp_replica_group()), expected(ParallelAxis::kFsdpReplicas));
    EXPECT_EQ(state.get_kv_shared_group().size, 2);
    if (rank.rank() == 5) {
      EXPECT_EQ(state.rmsg("loss is NaN"), "[rank_5_pp0_tp1_dp1_cp0] loss is NaN");
    }
    EXPECT_EQ(state.is_global_rank_zero(), rank.rank() == 0);
  });
}

TEST(ParallelState, EveryRankKnowsItsPlace) {
  runtime::WorldOptions world;
  world.world_size = 8;
  runtime::run_ranks(world, [](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 2, 2);
    EXPECT_EQ(state.get_tensor_model_parallel_size(), 2);
    EXPECT_EQ(state.get_pipeline_model_parallel_size(), 2);
    EXPECT_EQ(state.get_data_parallel_size(), 2);
    EXPECT_EQ((state.get_pipeline_model_parallel_rank() * 2 + state.get_data_parallel_rank()) * 2 +
                  state.get_tensor_model_parallel_rank(),
              rank.rank());
    EXPECT_EQ(state.is_pipeline_first_stage(), rank.rank() < 4);
    EXPECT_EQ(state.is_pipeline_last_stage(), rank.rank() >= 4);
  });
}

TEST(ParallelState, AWorldThatDoesNotDivideIsTheUsersMistake) {
  runtime::WorldOptions world;
  world.world_size = 4;
  EXPECT_THROW(runtime::run_ranks(world,
                                  [](runtime::RankContext& rank) {
                                    ParallelState::initialize_model_parallel(rank, 3, 1);
                                  }),
               ConfigError);
}

}  // namespace
}  // namespace trellis::trainer::parallel_state_test
