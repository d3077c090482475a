// Full-size models, built in their published layouts on the emulated device in shape-only mode: the
// tensors that exist against the plan of `trellis validate` and against the published number of
// parameters.
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/run_config.h"
#include "trainer/models/factory.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer::parameter_counts_test {
namespace {

struct Model {
  const char* name;
  const char*
      file;  ///< of examples/nxdt, or of benchmarks/published/training when it ends in .yaml
  std::int64_t published;
  std::vector<std::string> overrides = {};
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

RunConfig load(const Model& model) {
  const std::string root = TRELLIS_SOURCE_DIR, file = model.file;
  return load_run_config(file.ends_with(".yaml") ? root + "/benchmarks/published/training/" + file
                                                 : root + "/examples/nxdt/" + file + "_config.yaml",
                         model.overrides);
}

/// Elements of the un-sharded weight: its rows without padding, each copy of a key/value head once.
std::int64_t whole_elements(const Parameter& parameter) {
  if (parameter.shared) return 0;
  if (!parameter.partition.is_sharded()) return parameter.tensor.numel();
  std::int64_t rows = 0;
  for (const PartitionBlock& block : parameter.partition.blocks) {
    std::int64_t held = 0;
    for (const RowRange& range : block.rows) held += range.is_padding() ? 0 : range.count;
    rows += held / block.copies;
  }
  return parameter.tensor.numel() / parameter.tensor.size(parameter.partition.dim) * rows;
}

/// The parameters that were built for one replica of the model.
struct Built {
  std::vector<std::vector<std::int64_t>> elements;  ///< by pipeline rank and TP rank
  std::int64_t whole = 0;
};

ModuleContext context_of(const RunConfig& config, const runtime::RankContext& rank,
                         const ParallelState& parallel, ParameterList& parameters) {
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.backward = std::make_shared<BackwardLayer>();
  context.device = rank.device();
  context.dtype = at::kBFloat16;
  context.sequence_parallel = config.distributed_strategy.sequence_parallel;
  context.shape_only = true;
  return context;
}

/// The ranks of one stage build every stage of the pipeline, one after another: a host process has
/// fewer ranks than a large model.
Built build(const RunConfig& config) {
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const nlohmann::json options = {{"schema", "trellis.device_options/1"},
                                  {"instance", "trn1.32xlarge"},
                                  {"world_size", config.tp()},
                                  {"shape_only", true},
                                  {"record", false}};
  plugin.check(plugin.api().configure(options.dump().c_str()));
  runtime::WorldOptions world;
  world.world_size = config.tp();
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = true;
  const auto ranges = layers_of_stages(config);
  const int stages = static_cast<int>(ranges.size());
  Built built;
  built.elements.assign(static_cast<std::size_t>(config.pp()),
                        std::vector<std::int64_t>(static_cast<std::size_t>(config.tp())));
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto parallel = ParallelState::initialize_model_parallel(
        rank, {.tensor_model_parallel_size = config.tp(),
               .pipeline_model_parallel_size = 1,
               .kv_size_multiplier = config.distributed_strategy.kv_replicator});
    for (int stage = 0; stage < stages; ++stage) {
      const auto [first, end] = ranges[static_cast<std::size_t>(stage)];
      ParameterList parameters;
      const auto module =
          make_pipeline_stage(config.model, context_of(config, rank, parallel, parameters),
                              {stage, stages, {first, end}});
      for (const Parameter& parameter : parameters) {
        EXPECT_TRUE(parameter.tensor.device().is_privateuseone()) << parameter.name;
        built.elements[static_cast<std::size_t>(stage % config.pp())]
                      [static_cast<std::size_t>(rank.rank())] += parameter.tensor.numel();
        if (rank.rank() == 0) built.whole += whole_elements(parameter);
      }
    }
  });
  return built;
}

class ParameterCounts : public testing::TestWithParam<Model> {};

TEST_P(ParameterCounts, OfTheTensorsThatAreBuilt) {
  const RunConfig config = load(GetParam());
  const Built built = build(config);
  EXPECT_EQ(built.whole, GetParam().published);
  EXPECT_EQ(config.num_parameters(), GetParam().published);
  const std::vector<std::int64_t> planned = plan_run(config).parameters_of_pipeline_rank;
  ASSERT_EQ(built.elements.size(), planned.size());
  for (std::size_t stage = 0; stage < planned.size(); ++stage)
    EXPECT_THAT(built.elements[stage], testing::Each(planned[stage])) << "pipeline rank " << stage;
}

/// Narayanan et al. 2021, equation 2: 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), and the last
/// norm, which it leaves out.
constexpr std::int64_t megatron_gpt(std::int64_t l, std::int64_t h, std::int64_t v,
                                    std::int64_t s) {
  return 12 * l * h * h + 13 * l * h + (v + s) * h + 2 * h;
}

const std::int64_t kGpt = megatron_gpt(32, 4096, 50304, 2048);

const std::vector<std::string> kQwen2 = {
    "model.model_type=qwen2",  "model.num_layers=28",
    "model.hidden_size=3584",  "model.ffn_hidden_size=18944",
    "model.vocab_size=152064", "model.num_attention_heads=28",
    "model.num_kv_heads=4",    "model_alignment_strategy={sft: {packing: true}}"};
const std::vector<std::string> kTiedQwen2 = {"model.model_type=qwen2",
                                             "model.num_layers=24",
                                             "model.hidden_size=896",
                                             "model.ffn_hidden_size=4864",
                                             "model.num_attention_heads=14",
                                             "model.num_kv_heads=2",
                                             "model.share_embeddings_and_output_weights=true",
                                             "model_alignment_strategy={sft: {packing: true}}"};
const std::vector<std::string> kOlmo2 = {
    "model.model_type=olmo2",       "model.num_layers=32",
    "model.hidden_size=4096",       "model.ffn_hidden_size=11008",
    "model.num_attention_heads=32", "model.num_kv_heads=32",
    "model.vocab_size=100352",      "model_alignment_strategy={sft: {packing: true}}"};

INSTANTIATE_TEST_SUITE_P(
    FullSize, ParameterCounts,
    testing::Values(Model{"Llama2_7B", "hf_llama_7B", 6'738'415'616, {"model.num_layers=32"}},
                    Model{"Llama3_8B", "hf_llama3_8B", 8'030'261'248},
                    Model{"Llama31_8B", "hf_llama3.1_8B", 8'030'261'248},
                    Model{"Llama3_70B", "hf_llama3_70B", 70'553'706'496},
                    Model{"Llama31_405B", "hf_llama3.1_405B_trn1", 405'853'388'800},
                    Model{"MegatronLlama2_7B", "megatron_llama_7B", 6'738'415'616},
                    Model{"MegatronLlama2_70B", "megatron_llama_70b", 68'976'648'192},
                    Model{"Mistral_7B", "megatron_mistral", 7'241'732'096},
                    Model{"MegatronGpt", "megatron_gpt", kGpt},
                    // bert-large-uncased with both heads, and google/vit-base-patch16-224, as
                    // transformers counts them.
                    Model{"BertLarge", "B1-1.yaml", 336'226'108},
                    Model{"VitBase", "V64.yaml", 86'567'656},
                    Model{"SmolLM2_360M", "D01.yaml", 361'821'120},
                    // Rank 16 on all projections: 16 · ((3 + 1) · 4096 + 4096 + 14336 + q, k, v,
                    // gate, up and both residual outputs) in 32 layers.
                    Model{"Llama31_8B_Lora", "C01.yaml",
                          8'030'261'248 +
                              std::int64_t{32} * 16 *
                                  (5 * 4096 + 14336 + 4096 + 2 * 1024 + 2 * 14336 + 2 * 4096)},
                    // As transformers counts Qwen/Qwen2-7B, its 0.5B and OLMo-2-1124-7B.
                    Model{"Qwen2_7B", "C05.yaml", 7'615'616'512, kQwen2},
                    Model{"Qwen2_Tied", "C05.yaml", 494'032'768, kTiedQwen2},
                    Model{"Olmo2_7B", "C05.yaml", 7'298'617'344, kOlmo2},
                    // As the Hub says of Qwen/Qwen3-8B.
                    Model{"Qwen3_8B",
                          "C05.yaml",
                          8'190'735'360,
                          {"model_alignment_strategy={sft: {packing: true}}"}},
                    // Rank 16 on queries, values and the output projection of a mixture.
                    Model{"Mixtral_Lora",
                          "hf_mixtral_8x7b",
                          47'508'099'072 + std::int64_t{32} * 16 * 3 * 2 * 4096,
                          {"model_alignment_strategy={sft: {}, peft: {lora_rank: 16, "
                           "target_modules: [q_proj, v_proj, o_proj]}}",
                           "data.tokenizer={library: byte-level}"}},
                    // Two norms more in each layer; the one inside the MLP is cut over TP.
                    Model{"MegatronGptNormformer",
                          "megatron_gpt",
                          kGpt + 32 * 2 * (4096 + 16384),
                          {"model.transformer_block_type=normformer"}},
                    // A tied head on another stage is its own copy on that rank and counts
                    // once in the model.
                    Model{"MegatronGptPipelined",
                          "megatron_gpt",
                          kGpt,
                          {"distributed_strategy.pipeline_model_parallel_size=4"}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trellis::trainer::parameter_counts_test
