#include "trainer/config/load/run_plan.h"

#include <numeric>

#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/parameter_count.h"

namespace trellis::trainer {
namespace {

using testing::ElementsAre;

RunConfig hf(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "model_source=hf");
  return load_text(kBaseConfig, overrides);
}

TEST(RunPlan, UnevenLayersGoToTheLastStages) {
  const RunConfig config =
      hf({"model.num_layers=7", "distributed_strategy.pipeline_model_parallel_size=4"});
  EXPECT_THAT(layers_of_stages(config),
              ElementsAre(std::pair(0, 1), std::pair(1, 3), std::pair(3, 5), std::pair(5, 7)));
}

TEST(RunPlan, CutsNameTheLastLayerOfAStage) {
  const RunConfig config = hf({"model.num_layers=9", "model.pipeline_cuts=[model.layers.2]"});
  EXPECT_THAT(layers_of_stages(config), ElementsAre(std::pair(0, 3), std::pair(3, 9)));
}

TEST(RunPlan, VirtualStagesGoRoundTheRanks) {
  const RunPlan plan = plan_run(
      load_text(kBaseConfig, {"distributed_strategy.virtual_pipeline_model_parallel_size=2"}));
  std::vector<int> ranks;
  for (const StagePlan& stage : plan.stages) ranks.push_back(stage.pipeline_rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(plan.schedule.name, "interleaved 1F1B");
  EXPECT_DOUBLE_EQ(plan.schedule.bubble, 1.0 / (2 * 4));
}

TEST(RunPlan, GroupsFollowTheRankFormula) {
  const RunPlan plan = plan_run(load_text(kBaseConfig));  // TP 2 × PP 2 × DP 2
  ASSERT_EQ(plan.groups.size(), 3U);
  EXPECT_THAT(plan.groups[0].replica_groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                                                         ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(plan.groups[1].replica_groups, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3),
                                                         ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_THAT(plan.groups[2].replica_groups, ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                                         ElementsAre(2, 6), ElementsAre(3, 7)));
}

TEST(RunPlan, EveryRankIsOnceInEachAxis) {
  const RunPlan plan =
      plan_run(load_text(kBaseConfig, {"distributed_strategy.context_parallel_size=2",
                                       "model.fusions.ring_attention=true"}));
  for (const GroupPlan& group : plan.groups) {
    std::vector<int> seen, all(8);
    for (const auto& members : group.replica_groups)
      seen.insert(seen.end(), members.begin(), members.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_THAT(seen, testing::UnorderedElementsAreArray(all)) << group.axis;
    EXPECT_EQ(group.count * group.size, 8) << group.axis;
  }
}

TEST(RunPlan, ParametersOfOneRankAreTheWholeModel) {
  for (const char* tied : {"true", "false"}) {
    const RunConfig config =
        load_text(kBaseConfig, {"distributed_strategy.tensor_model_parallel_size=1",
                                "distributed_strategy.sequence_parallel=false",
                                "distributed_strategy.pipeline_model_parallel_size=1",
                                std::string("model.share_embeddings_and_output_weights=") + tied});
    EXPECT_THAT(plan_run(config).parameters_of_pipeline_rank, ElementsAre(config.num_parameters()));
  }
}

/// B of the value projection next to 2 heads of 16, A next to the hidden size of 64.
TEST(RunPlan, AdaptersCountOnTheStageOfTheirLayer) {
  const auto parameters = [](const std::string& peft) {
    return plan_run(load_text(kBaseConfig, {"distributed_strategy.tensor_model_parallel_size=1",
                                            "distributed_strategy.sequence_parallel=false",
                                            "distributed_strategy.pipeline_model_parallel_size=2",
                                            "model_alignment_strategy={sft: {}" + peft + "}"}))
        .parameters_of_pipeline_rank;
  };
  const auto base = parameters("");
  EXPECT_THAT(parameters(", peft: {lora_rank: 3, lora_alpha: 8, target_modules: "
                         "[layers.3.self_attn.v_proj]}"),
              ElementsAre(base[0], base[1] + std::int64_t{3} * (64 + 32)));
}

/// By hand: hidden 64, 4 heads of 16 (2 key/value), feed-forward 96, vocabulary 272, 4 layers.
TEST(ParameterCount, OfTheBaseConfiguration) {
  const std::int64_t layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96 + 2 * 64;
  EXPECT_EQ(load_text(kBaseConfig).num_parameters(), 2 * 272 * 64 + 4 * layer + 64);
  const RunConfig biased =
      load_text(kBaseConfig, {"model.has_bias=true", "model.normalization=layernorm"});
  EXPECT_EQ(biased.num_parameters(),
            2 * 272 * 64 + 4 * (layer + 2 * 64 + (64 + 2 * 32) + 64 + 2 * 96 + 64) + 2 * 64);
}

TEST(ParameterCount, ReplicatedHeadsCountOncePerModelAndOncePerRank) {
  const RunConfig config =
      hf({"model.qkv_linear=true", "model.num_kv_heads=1", "distributed_strategy.kv_replicator=2"});
  const ParameterCounts whole = count_parameters(config.model),
                        rank = count_parameters(config.model, 2, 2);
  const std::int64_t key_value = 2 * 64 * 16, norms = 2 * 64;
  EXPECT_EQ(2 * (rank.dense_layer - norms), whole.dense_layer - norms + key_value);
}

TEST(Flops, AttentionAndProductsOfAStep) {
  const RunConfig config = load_text(kBaseConfig);
  const double tokens = 16.0 * 32,
               products = static_cast<double>(config.num_parameters() - 272 * 64);
  EXPECT_DOUBLE_EQ(config.model_flops_per_step(),
                   6 * products * tokens + 12.0 * 4 * 64 * 32 * tokens / 2);
}

TEST(Flops, AWindowSavesAttentionAndASharedHeadSavesNone) {
  const RunConfig full = load_text(kBaseConfig);
  const RunConfig window = load_text(kBaseConfig, {"model.sliding_window_size=8"});
  const double tokens = 16.0 * 32;
  EXPECT_DOUBLE_EQ(full.model_flops_per_step() - window.model_flops_per_step(),
                   12.0 * 4 * 64 * tokens * (16 - (8 - 64.0 / 64)));
  EXPECT_DOUBLE_EQ(load_text(kBaseConfig, {"model.share_embeddings_and_output_weights=true"})
                       .model_flops_per_step(),
                   full.model_flops_per_step());
}

}  // namespace
}  // namespace trellis::trainer
