#include "trainer/config/load/run_plan.h"

#include "base/check.h"
#include "trainer/config/parameter_count.h"
#include "trainer/config/sections/model_readers.h"

namespace trellis::trainer {
namespace {

/// Ranks count through TP first, then CP, DP and PP.
GroupPlan plan_group(const std::string& axis, int size, int stride, int world) {
  GroupPlan plan{axis, size, world / size, stride, {}};
  for (int rank = 0; rank < world; ++rank) {
    if (rank / stride % size != 0) continue;  // not the first of its group
    std::vector<int> members;
    for (int i = 0; i < size; ++i) members.push_back(rank + i * stride);
    plan.replica_groups.push_back(std::move(members));
  }
  return plan;
}

std::vector<GroupPlan> plan_groups(const RunConfig& config) {
  const int tp = config.tp(), cp = config.cp(), dp = config.dp(), world = config.world_size();
  std::vector<GroupPlan> groups = {plan_group("TP", tp, 1, world)};
  if (cp > 1) groups.push_back(plan_group("CP", cp, tp, world));
  groups.push_back(plan_group("DP", dp, tp * cp, world));
  groups.push_back(plan_group("PP", config.pp(), tp * cp * dp, world));
  return groups;
}

SchedulePlan plan_schedule(const RunConfig& config) {
  SchedulePlan plan;
  plan.num_microbatches = config.num_microbatches();
  plan.name = config.pp() == 1 ? "no pipeline" : config.vpp() == 1 ? "1F1B" : "interleaved 1F1B";
  plan.bubble = static_cast<double>(config.pp() - 1) /
                (static_cast<double>(config.vpp()) * plan.num_microbatches);
  return plan;
}

}  // namespace

std::vector<std::pair<int, int>> layers_of_stages(const RunConfig& config) {
  const int stages = config.pp() * config.vpp(), layers = config.model.num_layers;
  TRELLIS_CHECK(layers >= stages, "each stage has a layer");
  std::vector<std::pair<int, int>> ranges;
  int first = 0;
  for (int stage = 0; stage < stages; ++stage) {
    int end = first + layers / stages + (stage >= stages - layers % stages ? 1 : 0);
    if (!config.model.pipeline_cuts.empty()) {
      const bool last = stage + 1 == stages;
      end = last
                ? layers
                : layer_of(config.model.pipeline_cuts.at(static_cast<std::size_t>(stage))).value() +
                      1;
    }
    ranges.emplace_back(first, end);
    first = end;
  }
  return ranges;
}

std::vector<StagePlan> plan_stages(const RunConfig& config) {
  const ModelSection& model = config.model;
  const ParameterCounts counts =
      count_parameters(model, config.tp(), config.distributed_strategy.kv_replicator, config.ep());
  const auto ranges = layers_of_stages(config);
  std::vector<StagePlan> stages;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    StagePlan stage{static_cast<int>(i), static_cast<int>(i) % config.pp(), ranges[i].first,
                    ranges[i].second, 0};
    const bool first = i == 0, last = i + 1 == ranges.size();
    if (first) stage.parameters_per_rank += counts.embedding + counts.positions;
    for (int layer = stage.first_layer; layer < stage.end_layer; ++layer)
      stage.parameters_per_rank += counts.layer(model, layer);
    // A shared head has its own copy of the weight only where the embedding is on another rank.
    const bool own_head = !model.share_embeddings_and_output_weights || config.pp() > 1;
    if (last)
      stage.parameters_per_rank +=
          counts.final_norm + counts.token_head + counts.sample_head + (own_head ? counts.head : 0);
    stages.push_back(stage);
  }
  return stages;
}

RunPlan plan_run(const RunConfig& config) {
  RunPlan plan;
  plan.parameters = config.num_parameters();
  plan.stages = plan_stages(config);
  plan.parameters_of_pipeline_rank.resize(static_cast<std::size_t>(config.pp()));
  for (const StagePlan& stage : plan.stages)
    plan.parameters_of_pipeline_rank[static_cast<std::size_t>(stage.pipeline_rank)] +=
        stage.parameters_per_rank;
  plan.groups = plan_groups(config);
  plan.schedule = plan_schedule(config);
  return plan;
}

}  // namespace trellis::trainer
