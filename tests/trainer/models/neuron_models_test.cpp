// Every kind of model on the emulated device: with data it computes what the CPU computes, without
// data it runs the same steps.
#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/groups/device_plugin.h"
#include "tests/integration/layout_run.h"

namespace trellis::trainer::neuron_models_test {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

constexpr Layout kLayout{2, 2, 1, true, true};
constexpr std::int64_t kSteps = 2;

runtime::WorldOptions emulated(bool shape_only) {
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const std::string options =
      R"({"schema": "trellis.device_options/1", "instance": "trn1.32xlarge", )"
      R"("nodes": 1, "world_size": )" +
      std::to_string(kLayout.world_size()) + R"(, "shape_only": )" +
      (shape_only ? "true" : "false") + R"(, "record": true})";
  plugin.check(plugin.api().configure(options.c_str()));
  runtime::WorldOptions world;
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = shape_only;
  return world;
}

struct Variant {
  const char* name;
  void (*change)(ModelSection& model);
};

void gpt(ModelSection& m) {
  m.architecture = "gpt";
  m.normalization = Normalization::kLayerNorm;
  m.activation = Activation::kGelu;
  m.position_embedding = PositionEmbedding::kLearnedAbsolute;
  m.has_bias = m.share_embeddings_and_output_weights = true;
}

const Variant kVariants[] = {
    {"Gpt", gpt},
    {"GptDropoutRecompute",
     [](ModelSection& m) {
       gpt(m), m.hidden_dropout = m.attention_dropout = m.ffn_dropout = 0.1,
               m.recompute = Recompute::kFull;
     }},
    {"NormformerGeglu1P",
     [](ModelSection& m) {
       gpt(m), m.transformer_block_type = TransformerBlock::kNormformer;
       m.normalization = Normalization::kLayerNorm1P, m.activation = Activation::kGeglu;
     }},
    {"PostLnOpenAiGelu",
     [](ModelSection& m) {
       gpt(m), m.transformer_block_type = TransformerBlock::kPostLn,
               m.activation = Activation::kOpenAiGelu;
     }},
    {"GptJReglu",
     [](ModelSection& m) {
       gpt(m), m.transformer_block_type = TransformerBlock::kGptJ,
               m.activation = Activation::kReglu;
     }},
    {"Window", [](ModelSection& m) { m.sliding_window = 5; }},
    {"PlainLayerScaling",
     [](ModelSection& m) {
       m.flash_attention = false,
       m.apply_query_key_layer_scaling = m.fp32_residual_connection = true;
     }},
    {"SelectiveRecompute",
     [](ModelSection& m) {
       m.recompute = Recompute::kSelective,
       m.recompute_modules = {"CoreAttention", "LlamaMLP", "LlamaRMSNorm"};
     }},
    {"Replicated", [](ModelSection& m) { m.qkv_linear = true, m.num_kv_heads = 1; }},
};

RunConfig small_model(const Variant& variant, const Layout& layout, const char* precision) {
  RunConfig config = small_llama(layout, precision, kSteps);
  config.model.num_layers = 2;
  variant.change(config.model);
  config.distributed_strategy.kv_replicator = std::max(1, layout.tp / config.model.num_kv_heads);
  return config;
}

/// As the Llama data of the other tests, with documents and positions: what a model reads in
/// addition the tokens.
class Documents final : public DataModule {
 public:
  explicit Documents(const RunConfig& config) : tokens_(config) {}
  [[nodiscard]] std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                      int dp_rank) const override {
    std::vector<MicroBatch> result = tokens_.micro_batches(step, dp_rank);
    for (MicroBatch& batch : result) {
      const at::Tensor place = at::arange(batch.input_ids.size(1)).expand_as(batch.input_ids);
      batch.attention_mask = place.ge(6).to(at::kLong) + 1;
      batch.position_ids = place - place.ge(6).to(at::kLong) * 6;
      batch.loss_mask = place.ge(2).to(at::kFloat);
    }
    return result;
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return tokens_.num_tokens(); }
  [[nodiscard]] std::string description() const override { return "documents"; }

 private:
  testing_support::RandomTokens tokens_;
};

class NeuronModels : public testing::TestWithParam<Variant> {};

TEST_P(NeuronModels, WithDataEqualsOneCpuRank) {
  const runtime::WorldOptions world = emulated(/*shape_only=*/false);  // once per process
  for (const bool documents : {false, true}) {
    const RunConfig one = small_model(GetParam(), {}, "fp64"),
                    config = small_model(GetParam(), kLayout, "fp64");
    const auto data = [&](const RunConfig& run) {
      return documents ? std::make_shared<Documents>(run) : std::shared_ptr<const DataModule>();
    };
    const Outcome one_rank = train(one, {}, {}, {}, data(one));
    EXPECT_LE(worst_error(train(config, kLayout, world, {}, data(config)), one_rank), 1e-10)
        << "documents " << documents;
  }
}

TEST_P(NeuronModels, RunsWithoutData) {
  const RunConfig config = small_model(GetParam(), kLayout, "mixed_precision");
  const runtime::WorldOptions world = emulated(/*shape_only=*/true);
  for (const bool documents : {false, true}) {
    const auto data =
        documents ? std::make_shared<Documents>(config) : std::shared_ptr<const DataModule>();
    EXPECT_EQ(train(config, kLayout, world, {}, data).steps.size(),
              static_cast<std::size_t>(kSteps));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, NeuronModels, testing::ValuesIn(kVariants),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trellis::trainer::neuron_models_test
