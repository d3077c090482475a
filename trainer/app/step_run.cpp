#include "trainer/app/step_request.h"

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "runtime/device_plugin.h"
#include "runtime/world.h"
#include "trainer/app/guarded.h"
#include "trainer/app/load_device.h"
#include "trainer/app/planned_load.h"
#include "trainer/app/run_facts.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/trainer.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

RunConfig load(const RunRequest& request) {
  RunConfig config = load_run_config(request.config_file, request.overrides, request.instance);
  refuse_unsupported(config, true);
  config.trainer.max_steps = 1;
  config.trainer.enable_progress_bar = false;
  return config;
}

std::string run(const RunRequest& request, StepAnswer answer) {
  RunConfig config = load(request);
  analysis::RunFacts facts = facts_of(request, config);
  DeviceChoice choice{.device = "neuron",
                      .instance = request.instance,
                      .nodes = request.nodes,
                      .shape_only = true,
                      .hardware = request.hardware,
                      .calibrated = request.calibrated,
                      .replay = true};
  facts.hardware = use_machine(choice, config);
  choice.equal_ranks = equal_ranks(config);
  runtime::WorldOptions world = world_on(choice, config, request.host_threads);
  world.shape_only = true;
  world.representatives = choice.equal_ranks.representatives();
  const auto data = make_empty_data_module(config);
  const Activity silent("");
  const trellis_device_plugin_t& device = world.plugin->api();
  const auto ask = [&](const auto& document) {
    const char* text = nullptr;
    world.plugin->check(document(&text));
    return json::parse(text);
  };
  json step;
  run_ranks_on(choice, config, world, [&](runtime::RankContext& rank) {
    Trainer(config, rank, data).fit([&](const StepResult& result) {
      if (rank.rank() != 0) return;
      facts.steps = result.step;
      step = ask([&](const char** text) { return device.simulate_step(result.step, text); });
    });
  });
  if (answer == StepAnswer::kStep) return json{{"simulated", step}}.dump();
  facts.routing = planned_load(config);
  return analysis::run_report(facts, step, ask(device.memory_report), nullptr, nullptr).dump();
}

}  // namespace
}  // namespace trellis::trainer

extern "C" __attribute__((visibility("default"))) int trellis_trainer_step(
    const trellis::trainer::RunRequest* request, trellis::trainer::StepAnswer answer,
    std::string* report) {
  return trellis::trainer::guarded([&] {
    *report = trellis::trainer::run(*request, answer);
    return 0;
  });
}
