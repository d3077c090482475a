#include "trainer/checkpoint/training/adapter_loader.h"

#include <map>
#include <utility>

#include "trainer/checkpoint/training/find_adapter.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/loop/rank_model.h"

namespace trellis::checkpoint {
namespace {

using trainer::RunConfig;

/// The same model on one rank.
RunConfig of_one_rank(const RunConfig& config) {
  RunConfig one = config;
  const bool zero1 = config.distributed_strategy.zero1;
  one.distributed_strategy = {};
  one.distributed_strategy.zero1 = zero1;
  one.trainer.num_nodes = one.trainer.devices = 1;
  one.data.global_batch_size = config.data.micro_batch_size;
  one.model.pipeline_cuts.clear();
  return one;
}

}  // namespace

std::vector<adapters::TrainedTensor> trained_tensors(const RunConfig& config) {
  const RunConfig one = of_one_rank(config);
  const trainer::ParallelState parallel;
  trainer::ParameterList parameters;
  const trainer::ModuleContext context =
      trainer::module_context(one, {at::kMeta, /*shape_only=*/true}, parallel, parameters);
  const auto stages = trainer::build_stages(one, context);
  std::map<std::string, Shape> shapes;
  LiveState live = trained_part(parameters, {live_weights(parameters, {}), {}});
  for (const LiveTensor& tensor : live.model) {
    for (const ShardedPart& part : tensor.parts)
      shapes.emplace(part.tensor.key, part.tensor.global_shape);
  }
  std::vector<adapters::TrainedTensor> trained;
  for (auto& [key, shape] : shapes) trained.push_back({key, std::move(shape)});
  return trained;
}

AdapterLoader::AdapterLoader(const RunConfig& config) {
  const trainer::ModelSection& model = config.model;
  const std::int64_t head =
      model.head_dim > 0 ? model.head_dim : model.hidden_size / model.num_attention_heads;
  loader_ = std::make_unique<SourceLoader>(
      std::make_unique<adapters::FittedAdapter>(
          find_adapter(config), trained_tensors(config),
          adapters::ProjectionRows{model.num_attention_heads * head, model.num_kv_heads * head}),
      config.world_size());
}

void AdapterLoader::load(runtime::RankContext& rank, const trainer::ParameterList& parameters,
                         LiveState live) {
  LiveState trained = trained_part(parameters, std::move(live));
  std::vector<LiveTensor> wanted = std::move(trained.model);
  for (LiveTensor& tensor : trained.optimizer) {
    if (tensor.state == kMasterState || tensor.state == kEmaState)
      wanted.push_back(std::move(tensor));
  }
  for (LiveTensor& tensor : wanted) tensor.optional = false;
  loader_->load(rank, wanted);
}

}  // namespace trellis::checkpoint
