#include <chrono>

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"
#include "trainer/requests/portability_request.h"

namespace trellis::trainer {
namespace {

std::string operators_of(const PortabilityRequest& request) {
  RunConfig config = load_run_config(request, {.steps = 1, .without_progress = true});
  refuse_unsupported(config, true);
  DeviceChoice choice{.device = "neuron",
                      .instance = request.instance,
                      .nodes = request.nodes,
                      .shape_only = true,
                      .unlimited_memory = true,
                      .replay = true};
  use_machine(choice, config);
  choice.equal_ranks = equal_ranks(config);
  runtime::WorldOptions world = world_on(choice, config, request.host_threads);
  world.shape_only = true;
  world.representatives = choice.equal_ranks.representatives();
  world.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(request.timeout_s * 1000));
  const auto data = make_empty_data_module(config);
  const Activity activity("one step without data, whose operators are listed");
  run_ranks_on(choice, config, world, [&](runtime::RankContext& rank) {
    Trainer(config, rank, data).fit([](const StepResult&) {});
  });
  const char* report = nullptr;
  world.plugin->check(world.plugin->api().portability_report(&report));
  return report;
}

std::string check_operators(const DeviceRequest& request, const std::string& operators) {
  DeviceChoice choice{.device = request.device};
  choice.plugin = request.plugin;
  choice.library = request.library;
  if (choice.device == "cpu" && choice.plugin.empty()) choice.plugin = "torch_device";
  const runtime::DevicePlugin& plugin = *load_device(choice, RunConfig{});
  if (plugin.api().check_operators == nullptr) {
    throw ConfigError("--for " + request.device + ": its provider, " + plugin.api().provider +
                      ", does not say which operators it has");
  }
  const char* report = nullptr;
  plugin.check(plugin.api().check_operators(operators.c_str(), &report));
  return report;
}

}  // namespace
int run_operators(const PortabilityRequest& request, std::string& report) {
  return guarded([&] {
    report = operators_of(request);
    return 0;
  });
}

int run_check_operators(const DeviceRequest& request, const std::string& operators,
                        std::string& report) {
  return guarded([&] {
    report = check_operators(request, operators);
    return 0;
  });
}

}  // namespace trellis::trainer
