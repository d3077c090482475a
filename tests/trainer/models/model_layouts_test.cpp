// Every option of a model in every layout: two steps against one rank, in fp64. And
// recomputation, which may not change a bit.
#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"

namespace trellis::trainer::model_layouts_test {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

constexpr std::int64_t kSteps = 2;
constexpr double kTolerance = 1e-10;

/// Makes one kind of model of the small Llama.
struct Variant {
  const char* name;
  void (*change)(ModelSection& model);
};

void gpt(ModelSection& model) {
  model.architecture = "gpt";
  model.normalization = Normalization::kLayerNorm;
  model.activation = Activation::kGelu;
  model.position_embedding = PositionEmbedding::kLearnedAbsolute;
  model.has_bias = true;
}

void with_dropout(ModelSection& model) {
  model.hidden_dropout = 0.1, model.attention_dropout = 0.2, model.ffn_dropout = 0.15;
}

const Variant kVariants[] = {
    {"Gpt", gpt},
    {"GptDropout", [](ModelSection& m) { gpt(m), with_dropout(m); }},
    {"GptTied", [](ModelSection& m) { gpt(m), m.share_embeddings_and_output_weights = true; }},
    {"GptFusedHeads", [](ModelSection& m) { gpt(m), m.num_kv_heads = m.num_attention_heads; }},
    {"GptPostLn",
     [](ModelSection& m) { gpt(m), m.transformer_block_type = TransformerBlock::kPostLn; }},
    {"GptGptJ",
     [](ModelSection& m) { gpt(m), m.transformer_block_type = TransformerBlock::kGptJ; }},
    {"GptNormformer",
     [](ModelSection& m) { gpt(m), m.transformer_block_type = TransformerBlock::kNormformer; }},
    {"NormformerRmsNormDropout",
     [](ModelSection& m) {
       gpt(m), with_dropout(m);
       m.transformer_block_type = TransformerBlock::kNormformer;
       m.normalization = Normalization::kRmsNorm;
     }},
    {"LayerNorm1PGeglu",
     [](ModelSection& m) {
       gpt(m), m.normalization = Normalization::kLayerNorm1P, m.activation = Activation::kGeglu;
     }},
    {"RegluRotaryHalf",
     [](ModelSection& m) {
       gpt(m);
       m.activation = Activation::kReglu, m.position_embedding = PositionEmbedding::kRope,
       m.rotary_percentage = 0.5;
     }},
    {"Fp32ResidualLayerScaling",
     [](ModelSection& m) {
       m.fp32_residual_connection = m.apply_query_key_layer_scaling = true,
       m.flash_attention = false;
     }},
    {"QueryKeyNorms", [](ModelSection& m) { m.qk_layernorm = true; }},
    {"QkvBiases",
     [](ModelSection& m) { m.qkv_bias = m.share_embeddings_and_output_weights = true; }},
    {"Olmo2",
     [](ModelSection& m) {
       m.qk_layernorm = m.qk_layernorm_across_heads = true;
       m.transformer_block_type = TransformerBlock::kReorderedNorm;
     }},
    {"GptNormsAcrossHeadsDropout",
     [](ModelSection& m) {
       gpt(m), with_dropout(m);
       m.num_kv_heads = m.num_attention_heads;
       m.qk_layernorm = m.qk_layernorm_across_heads = true;
       m.position_embedding = PositionEmbedding::kRope;
       m.transformer_block_type = TransformerBlock::kReorderedNorm;
       m.recompute = Recompute::kFull;
     }},
    {"GptQueryKeyNorms",
     [](ModelSection& m) {
       gpt(m), m.qk_layernorm = true, m.normalization = Normalization::kLayerNorm1P;
       // Without it the bias of keys adds the same to each score, and its gradient is rounding.
       m.position_embedding = PositionEmbedding::kRope;
     }},
    {"Window", [](ModelSection& m) { m.sliding_window = 5; }},
    {"WindowPlainAttention",
     [](ModelSection& m) { m.sliding_window = 5, m.flash_attention = false; }},
    {"Llama3Scaling", [](ModelSection& m) { m.rope_scaling = {"llama3", 8, 1, 4, 8}; }},
    {"GateAndUpSeparate",
     [](ModelSection& m) {
       m.fuse_gate_up = false, m.has_bias = true, m.recompute = Recompute::kSelective,
       m.recompute_modules = {"LlamaMLP"};
     }},
    {"SeparateHeadSize", [](ModelSection& m) { m.head_dim = 6; }},
    {"RecomputeFullDropout",
     [](ModelSection& m) { gpt(m), with_dropout(m), m.recompute = Recompute::kFull; }},
};

RunConfig small_model(const Variant& variant, const Layout& layout) {
  RunConfig config = small_llama(layout, "fp64", kSteps);
  config.data.global_batch_size = 4;
  config.model.num_layers = 4;
  config.model.head_dim = config.model.hidden_size / config.model.num_attention_heads;
  variant.change(config.model);
  return config;
}

/// The outcome of one rank, made once for each variant.
const Outcome& reference(const Variant& variant) {
  static std::map<std::string, Outcome> known;
  const auto found = known.find(variant.name);
  if (found != known.end()) return found->second;
  return known.emplace(variant.name, train(small_model(variant, {}), {})).first->second;
}

class ModelLayouts : public testing::TestWithParam<std::tuple<Variant, Layout>> {};

TEST_P(ModelLayouts, EqualsOneRank) {
  const auto& [variant, layout] = GetParam();
  const Outcome outcome = train(small_model(variant, layout), layout);
  EXPECT_LE(worst_error(outcome, reference(variant)), kTolerance);
  EXPECT_TRUE(outcome.replicas_equal) << "ranks that hold the same weight must hold the same bits";
}

std::string layout_name(const Layout& layout) {
  return "TP" + std::to_string(layout.tp) + "PP" + std::to_string(layout.pp) + "DP" +
         std::to_string(layout.dp) + (layout.sequence_parallel ? "_SP" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Options, ModelLayouts,
    testing::Combine(testing::ValuesIn(kVariants),
                     testing::Values(Layout{2, 1, 1, false, true}, Layout{4, 1, 1, true, true},
                                     Layout{1, 2, 2, false, true}, Layout{2, 2, 2, true, true})),
    [](const auto& test) {
      return std::get<0>(test.param).name + ("_" + layout_name(std::get<1>(test.param)));
    });

/// Documents packed into each sample, positions that restart with each, and labels that do not
/// count.
class PackedDocuments final : public DataModule {
 public:
  explicit PackedDocuments(const RunConfig& config) : tokens_(config) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    std::vector<MicroBatch> result = tokens_.micro_batches(step, dp_rank);
    for (MicroBatch& batch : result) {
      const std::int64_t s = batch.input_ids.size(1),
                         cut = 3 + batch.input_ids[0][0].item<std::int64_t>() % (s - 4);
      const at::Tensor place = at::arange(s).expand_as(batch.input_ids), second = place.ge(cut);
      batch.attention_mask = second.to(at::kLong) + 1;
      batch.position_ids = place - second.to(at::kLong) * cut;
      batch.labels =
          batch.labels.clone();  // a row's ids and labels may be views of the same tokens
      batch.labels.select(1, cut - 1).fill_(-100);  // the next token is another document's
      batch.loss_mask = place.remainder(3).add(1).to(at::kDouble);
    }
    return result;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return tokens_.num_tokens(); }
  [[nodiscard]] std::string description() const override { return "packed documents"; }

 private:
  testing_support::RandomTokens tokens_;
};

TEST(ModelLayouts, PackedDocumentsEqualOneRank) {
  for (const Variant& variant :
       {Variant{"Llama", [](ModelSection&) {}}, Variant{"Gpt", gpt},
        Variant{"Window", [](ModelSection& m) { m.sliding_window = 4; }}}) {
    const RunConfig one = small_model(variant, {});
    const Outcome expected = train(one, {}, {}, {}, std::make_shared<PackedDocuments>(one));
    EXPECT_GT(worst_error(train(one, {}), expected), 1e-3) << "documents must matter";
    for (const Layout& layout : {Layout{2, 2, 1, true, true}, Layout{2, 1, 2, false, true}}) {
      const RunConfig config = small_model(variant, layout);
      const Outcome outcome =
          train(config, layout, {}, {}, std::make_shared<PackedDocuments>(config));
      EXPECT_LE(worst_error(outcome, expected), kTolerance) << variant.name;
    }
  }
}

/// More TP ranks than key/value heads: each head lies on several ranks, which stay equal.
TEST(ModelLayouts, ReplicatedKeyValueHeadsEqualOneRank) {
  for (const bool fused : {false, true}) {  // and both families
    const auto replicated = [&](const Layout& layout) {
      RunConfig config = small_model(
          {"", [](ModelSection& m) { m.num_kv_heads = 2, m.qkv_linear = m.qkv_bias = true; }},
          layout);
      config.model.fuse_qkv = config.model.qk_layernorm = config.model.has_bias = fused;
      config.model.architecture = fused ? "gpt" : "llama";
      config.model.attention_dropout = 0.1;
      config.distributed_strategy.kv_replicator = std::max(1, layout.tp / 2);
      return config;
    };
    const Outcome one_rank = train(replicated({}), {});
    for (const Layout& layout :
         {Layout{2, 1, 1, false, true}, Layout{4, 1, 1, true, true}, Layout{4, 1, 2, false, true},
          Layout{8, 1, 1, true, true}, Layout{4, 2, 1, true, true}}) {
      const Outcome outcome = train(replicated(layout), layout);
      EXPECT_LE(worst_error(outcome, one_rank), kTolerance)
          << "TP " << layout.tp << " fused " << fused;
      EXPECT_TRUE(outcome.replicas_equal);
    }
  }
}

void with_adapters(ModelSection& model) {
  model.lora = LoraSection{3, 6, 0.1, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}};
}

/// Adapters on all projections, with dropout: any layout trains what one rank trains, and only the
/// adapters.
TEST(ModelLora, EqualsOneRankAndMovesAdaptersOnly) {
  const Variant lora{"", with_adapters};
  RunConfig config = small_model(lora, {});
  const Outcome one_rank = train(config, {});
  for (const Layout& layout :
       {Layout{2, 1, 1, false, true}, Layout{4, 1, 1, true, true}, Layout{2, 1, 2, true, false}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      RunConfig changed = small_model(lora, layout);
      changed.model.recompute = recompute;
      const Outcome outcome = train(changed, layout);
      EXPECT_LE(worst_error(outcome, one_rank), kTolerance)
          << "TP " << layout.tp << " SP " << layout.sequence_parallel;
      EXPECT_TRUE(outcome.replicas_equal);
    }
  }
}

/// B starts at zero.
TEST(ModelLora, TheFirstLossIsTheBaseModels) {
  const double base = train(small_model({"", [](ModelSection&) {}}, {}), {}).steps[0].loss;
  const Outcome adapted = train(small_model({"", with_adapters}, {}), {});
  EXPECT_DOUBLE_EQ(adapted.steps[0].loss, base);
  EXPECT_NE(adapted.steps.back().loss, base);
}

/// Query, key and value as separate layers, with key and value replicated where TP exceeds
/// their heads.
TEST(ModelLora, ReplicatedKeysAndValuesEqualOneRank) {
  const auto replicated = [](const Layout& layout) {
    RunConfig config = small_model({"",
                                    [](ModelSection& m) {
                                      with_adapters(m);
                                      m.num_kv_heads = 2;
                                      m.qkv_linear = true;
                                    }},
                                   layout);
    config.distributed_strategy.kv_replicator = std::max(1, layout.tp / 2);
    return config;
  };
  const Outcome one_rank = train(replicated({}), {});
  for (const Layout& layout : {Layout{2, 1, 1, false, true}, Layout{4, 1, 1, true, true}}) {
    const Outcome outcome = train(replicated(layout), layout);
    EXPECT_LE(worst_error(outcome, one_rank), kTolerance) << "TP " << layout.tp;
    EXPECT_TRUE(outcome.replicas_equal);
  }
}

/// The residual stream crosses the stage border in fp32: cutting a bf16 model in two changes only
/// the order in which the gradient norm is summed (in bf16 it would lose 8 bits there), and the
/// stream's type matters.
TEST(ModelLayouts, AnFp32ResidualStreamCrossesStages) {
  const auto run = [](const Layout& layout, bool fp32_residual) {
    RunConfig config = small_model({"", [](ModelSection&) {}}, layout);
    config.precision.type = "mixed_precision";
    config.model.fp32_residual_connection = fp32_residual;
    return train(config, layout);
  };
  const Outcome one_stage = run({}, true);
  EXPECT_LE(worst_error(run({1, 2, 1, false, true}, true), one_stage), 1e-6);
  EXPECT_GT(worst_error(run({}, false), one_stage), 1e-4);
}

/// The parts that may be recomputed, in one model with dropout everywhere.
const Variant kRecomputations[] = {
    {"Full", [](ModelSection& m) { m.recompute = Recompute::kFull; }},
    {"CoreAttention", [](ModelSection& m) { m.recompute_modules = {"CoreAttention"}; }},
    {"LlamaMLP", [](ModelSection& m) { m.recompute_modules = {"LlamaMLP"}; }},
    {"NormAndActivation",
     [](ModelSection& m) { m.recompute_modules = {"LlamaRMSNorm", "ActivationMultiplyMLP"}; }},
    {"Layer", [](ModelSection& m) { m.recompute_modules = {"LlamaDecoderLayer"}; }},
    {"AttentionAndMlp",
     [](ModelSection& m) { m.recompute_modules = {"CoreAttention", "LlamaMLP", "LlamaRMSNorm"}; }},
};

class ModelRecompute : public testing::TestWithParam<std::tuple<Variant, Layout>> {};

TEST_P(ModelRecompute, ChangesNotOneBit) {
  const auto& [recomputation, layout] = GetParam();
  for (const bool dropout : {false, true}) {
    RunConfig config = small_model({"", [](ModelSection&) {}}, layout);
    config.precision.type = "fp32";
    if (dropout) with_dropout(config.model);
    const Outcome kept = train(config, layout);
    config.model.recompute = Recompute::kSelective;
    recomputation.change(config.model);
    EXPECT_EQ(worst_error(train(config, layout), kept), 0)
        << (dropout ? "with" : "without") << " dropout";
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, ModelRecompute,
                         testing::Combine(testing::ValuesIn(kRecomputations),
                                          testing::Values(Layout{}, Layout{2, 2, 1, true, true})),
                         [](const auto& test) {
                           return std::get<0>(test.param).name +
                                  ("_" + layout_name(std::get<1>(test.param)));
                         });

TEST(ModelRecompute, AnUnknownModuleIsNamedWithTheValidOnes) {
  RunConfig config = small_model({"", [](ModelSection&) {}}, {});
  config.model.recompute = Recompute::kSelective;
  config.model.recompute_modules = {"LlamaMlp"};
  try {
    train(config, {});
    FAIL() << "LlamaMlp was accepted";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    for (const char* part : {"LlamaMlp", "LlamaMLP", "CoreAttention", "LlamaRMSNorm",
                             "ActivationMultiplyMLP", "LlamaDecoderLayer"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

/// Dropout must drop: the loss differs from the one without, and from step to step with the weights
/// held.
TEST(ModelDropout, EachSiteChangesTheLoss) {
  RunConfig config = small_model({"", [](ModelSection&) {}}, {});
  const double without = train(config, {}).steps[0].loss;
  for (double ModelSection::* site :
       {&ModelSection::hidden_dropout, &ModelSection::attention_dropout,
        &ModelSection::ffn_dropout}) {
    RunConfig changed = config;
    changed.model.*site = 0.3;
    EXPECT_NE(train(changed, {}).steps[0].loss, without);
  }
}

}  // namespace
}  // namespace trellis::trainer::model_layouts_test
