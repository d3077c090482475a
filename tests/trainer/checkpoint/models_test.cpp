// Every model of the hub, and every choice of attention, through the paths that build it without
// data: the files of a layout, and what adapters of it train.
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"
#include "trainer/checkpoint/layout/layout_jobs.h"
#include "trainer/checkpoint/training/adapter_loader.h"
#include "trainer/config/lora_targets.h"

namespace trellis::checkpoint::models_test {
namespace {

using trainer::ModelSection;
using trainer::RunConfig;
using trainer::testing_support::Layout;
using trainer::testing_support::small_llama;

struct Model {
  const char* name;
  std::function<void(ModelSection&)> change;
};

const Model kModels[] = {
    {"llama", [](ModelSection&) {}},
    {"llama of a tied head and llama3's positions",
     [](ModelSection& m) {
       m.share_embeddings_and_output_weights = true;
       m.rope_scaling = {"llama3", 8, 1, 4, 8};
     }},
    {"mistral", [](ModelSection& m) { m.sliding_window = 4; }},
    {"mistral without fused attention",
     [](ModelSection& m) {
       m.sliding_window = 4;
       m.flash_attention = false;
     }},
    {"mixtral",
     [](ModelSection& m) {
       m.architecture = "mixtral";
       m.moe = trainer::MoeSection{.num_experts = 4};
     }},
    {"mixtral with a window",
     [](ModelSection& m) {
       m.architecture = "mixtral";
       m.moe = trainer::MoeSection{.num_experts = 4};
       m.sliding_window = 4;
     }},
    {"qwen2", [](ModelSection& m) { m.qkv_bias = m.share_embeddings_and_output_weights = true; }},
    {"qwen3", [](ModelSection& m) { m.qk_layernorm = true; }},
    {"olmo2",
     [](ModelSection& m) {
       m.qk_layernorm = m.qk_layernorm_across_heads = true;
       m.transformer_block_type = trainer::TransformerBlock::kReorderedNorm;
     }},
    {"gpt2",
     [](ModelSection& m) {
       m.architecture = "gpt";
       m.num_kv_heads = m.num_attention_heads;
       m.normalization = trainer::Normalization::kLayerNorm;
       m.activation = trainer::Activation::kOpenAiGelu;
       m.position_embedding = trainer::PositionEmbedding::kLearnedAbsolute;
       m.has_bias = m.share_embeddings_and_output_weights = true;
     }},
};

RunConfig config_of(const Model& model, const Layout& layout, int cp) {
  RunConfig config = small_llama(layout, "fp32", 1);
  config.model.head_dim = config.model.hidden_size / config.model.num_attention_heads;
  model.change(config.model);
  config.trainer.devices *= cp;
  config.distributed_strategy.context_parallel_size = cp;
  if (cp > 1) {
    config.model.ring_attention = true;
    config.model.flash_attention = false;
  }
  return config;
}

/// Weights of all ranks.
std::set<std::string> weights_of(const RunConfig& config) {
  std::set<std::string> weights;
  for (int rank = 0; rank < config.world_size(); ++rank) {
    (void)layout_jobs(config, rank, 0, [&](const native::RankContent& content) {
      for (const LiveTensor& tensor : content.live.model) {
        EXPECT_TRUE(tensor.values.is_meta()) << tensor.parameter;
        for (const ShardedPart& part : tensor.parts) weights.insert(part.tensor.key);
      }
      return std::vector<native::FileJob>();
    });
  }
  return weights;
}

TEST(WithoutData, EveryModelHasTheSameWeightsInEveryLayout) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    const std::set<std::string> expected = weights_of(config_of(model, {}, 1));
    EXPECT_GT(expected.size(), 5U * 6U);
    EXPECT_EQ(weights_of(config_of(model, {2, 2, 2, true, true}, 1)), expected);
    if (config_of(model, {}, 1).model.moe) continue;  // no ring of experts here
    EXPECT_EQ(weights_of(config_of(model, {1, 1, 1}, 2)), expected);
  }
}

TEST(WithoutData, EveryModelTakesAdapters) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    RunConfig config = config_of(model, {2, 1, 1}, 1);
    config.model.lora.emplace();
    config.model.lora->targets = trainer::default_lora_targets(config.model);
    std::set<std::string> keys;
    for (const adapters::TrainedTensor& tensor : trained_tensors(config)) keys.insert(tensor.key);
    EXPECT_FALSE(keys.empty());
    for (const std::string& key : keys) EXPECT_THAT(key, testing::HasSubstr(".lora_"));
  }
}

}  // namespace
}  // namespace trellis::checkpoint::models_test
