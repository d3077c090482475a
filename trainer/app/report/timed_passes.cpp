#include "trainer/app/report/timed_passes.h"

#include <nlohmann/json.hpp>

#include "runtime/groups/device_plugin.h"
#include "trainer/loop/rank_model.h"
#include "trainer/loop/trainer.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {

ShapeOnlyModel::ShapeOnlyModel(const RunConfig& run, runtime::RankContext& rank_context)
    : config(run),
      parallel(ParallelState::initialize_model_parallel(rank_context, parallel_sizes(run))),
      context(module_context(run, {rank_context.device(), true}, parallel, parameters)),
      rank(rank_context) {
  const Scope scope("phase=init");
  stages = build_stages(config, context);
}

void ShapeOnlyModel::end_pass(std::int64_t pass) {
  rank.plugin()->check(rank.plugin()->api().end_step(pass));
  rank.host_barrier();
  if (rank.rank() == 0) simulate(pass);
  rank.host_barrier();
}

TimedPasses time_passes(DeviceChoice choice, const RunConfig& config, int host_threads,
                        const std::function<void(ShapeOnlyModel&)>& body) {
  choice.shape_only = choice.record = true;
  choice.equal_ranks = equal_ranks(config);
  runtime::WorldOptions world = world_on(choice, config, host_threads);
  world.shape_only = true;
  world.exit_when_stuck = true;
  world.representatives = choice.equal_ranks.representatives();
  TimedPasses passes;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    ShapeOnlyModel model(config, rank);
    model.simulate = [&](std::int64_t pass) {
      const char* text = nullptr;
      world.plugin->check(world.plugin->api().simulate_step(pass, &text));
      const auto report = nlohmann::json::parse(text);
      passes.ms[pass] = report.at("step_time_ms");
      for (const auto& op : report.at("coverage").at("estimated"))
        passes.estimated.insert(op.get<std::string>());
    };
    body(model);
  });
  return passes;
}

}  // namespace trellis::trainer
