// Full-size models, built rank by rank on the emulated device in shape-only mode: the tensors that exist against the plan of `trellis validate`
// and against the published number of parameters.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/device_plugin.h"
#include "runtime/world.h"
#include "trainer/config/run_config.h"
#include "trainer/config/run_plan.h"
#include "trainer/data/data_module.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/trainer.h"

namespace trellis::trainer {
namespace {

struct Model {
  const char* name;
  const char* file;  ///< of examples/nxdt
  std::int64_t published;
  std::vector<std::string> overrides = {};
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

/// The example's own layout on as few nodes as hold one replica of the model.
RunConfig load(const Model& model) {
  std::vector<std::string> overrides = model.overrides;
  const std::string file = std::string(TRELLIS_SOURCE_DIR) + "/examples/nxdt/" + model.file + "_config.yaml";
  const RunConfig published = load_run_config(file, overrides);
  overrides.push_back("trainer.num_nodes=" + std::to_string(std::max(1, published.tp() * published.pp() / published.trainer.devices)));
  return load_run_config(file, overrides);
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

/// What was built.
struct Built {
  std::vector<std::int64_t> elements_of_rank;
  std::int64_t whole = 0;  ///< of one replica of the model
};

Built build(const RunConfig& config) {
  const auto& plugin = runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const nlohmann::json options = {{"schema", "trellis.device_options/1"}, {"instance", "trn1.32xlarge"}, {"nodes", config.trainer.num_nodes},
                                  {"world_size", config.world_size()}, {"shape_only", true}, {"record", false}};
  plugin.check(plugin.api().configure(options.dump().c_str()));
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = true;
  const auto data = make_empty_data_module(config);
  Built built;
  built.elements_of_rank.resize(static_cast<std::size_t>(config.world_size()));
  std::mutex mutex;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto groups = ParallelState::initialize_model_parallel(rank, {.tensor_model_parallel_size = config.tp(),
                                                                        .pipeline_model_parallel_size = config.pp(),
                                                                        .kv_size_multiplier = config.distributed_strategy.kv_replicator});
    const auto count = [&](ParameterList& parameters) {
      const std::lock_guard lock(mutex);
      const bool counts = groups.get_tensor_model_parallel_rank() == 0 && groups.get_data_parallel_rank() == 0;
      for (const Parameter& parameter : parameters) {
        built.elements_of_rank[static_cast<std::size_t>(rank.rank())] += parameter.tensor.numel();
        if (counts) built.whole += whole_elements(parameter);
      }
    };
    const Trainer trainer(config, rank, data, groups, {.built = count, .gradients_reduced = {}});
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
  const auto ranks_of_stage = built.elements_of_rank.size() / planned.size();
  for (std::size_t rank = 0; rank < built.elements_of_rank.size(); ++rank) {
    ASSERT_EQ(built.elements_of_rank[rank], planned[rank / ranks_of_stage]) << "rank " << rank;
  }
}

/// Narayanan et al. 2021, equation 2: 12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)), and the last norm, which it leaves out.
constexpr std::int64_t megatron_gpt(std::int64_t l, std::int64_t h, std::int64_t v, std::int64_t s) {
  return 12 * l * h * h + 13 * l * h + (v + s) * h + 2 * h;
}

const std::int64_t kGpt = megatron_gpt(32, 4096, 50304, 2048);

INSTANTIATE_TEST_SUITE_P(
    FullSize, ParameterCounts,
    testing::Values(Model{"Llama2_7B", "hf_llama_7B", 6'738'415'616, {"model.num_layers=32"}}, Model{"Llama3_8B", "hf_llama3_8B", 8'030'261'248},
                    Model{"Llama31_8B", "hf_llama3.1_8B", 8'030'261'248}, Model{"Llama3_70B", "hf_llama3_70B", 70'553'706'496},
                    Model{"Llama31_405B", "hf_llama3.1_405B_trn1", 405'853'388'800}, Model{"MegatronLlama2_7B", "megatron_llama_7B", 6'738'415'616},
                    Model{"MegatronLlama2_70B", "megatron_llama_70b", 68'976'648'192}, Model{"Mistral_7B", "megatron_mistral", 7'241'732'096},
                    Model{"MegatronGpt", "megatron_gpt", kGpt},
                    // Two norms more in each layer; the one inside the MLP is cut over TP.
                    Model{"MegatronGptNormformer", "megatron_gpt", kGpt + 32 * 2 * (4096 + 16384), {"model.transformer_block_type=normformer"}},
                    // A tied head on another stage is a copy of its own on that rank and counts once in the model.
                    Model{"MegatronGptPipelined", "megatron_gpt", kGpt, {"distributed_strategy.pipeline_model_parallel_size=4"}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trellis::trainer
