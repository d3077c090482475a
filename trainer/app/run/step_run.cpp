#include "trainer/requests/step_request.h"

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "trainer/app/prepare/guarded.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/app/prepare/run_facts.h"
#include "trainer/app/report/planned_load.h"
#include "trainer/app/run/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

class Runner : public StepRunner {
 public:
  int run(const RunRequest& request, StepAnswer answer, std::string& report) override {
    return guarded([&] {
      report = simulate(request, answer);
      return 0;
    });
  }

 private:
  RunConfig load(const RunRequest& request) {
    if (!file_ || file_name_ != request.config_file) file_.emplace(request.config_file);
    file_name_ = request.config_file;
    RunConfig config =
        file_->load(request.overrides, request.instance, {.steps = 1, .without_progress = true});
    refuse_unsupported(config, true);
    return config;
  }

  /// Reading its file takes longer than a small step.
  const sim::SystemConfig& machine(const RunRequest& request, const RunConfig& config) {
    MachineKey key{request.instance, request.nodes, config.trainer.lnc, request.hardware,
                   request.calibrated};
    if (machine_ && machine_->first == key) return machine_->second;
    sim::LoadOptions load;
    load.nodes = request.nodes;
    load.overrides = request.hardware;
    load.calibrated = request.calibrated;
    machine_.emplace(std::move(key), load_machine(config, request.instance, load));
    return machine_->second;
  }

  std::string simulate(const RunRequest& request, StepAnswer answer) {
    RunConfig config = load(request);
    DeviceChoice choice{.device = "neuron",
                        .instance = request.instance,
                        .nodes = request.nodes,
                        .shape_only = true,
                        .hardware = request.hardware,
                        .calibrated = request.calibrated,
                        .replay = true};
    const auto numbers = use_machine(machine(request, config), config);
    choice.equal_ranks = equal_ranks(config);
    runtime::WorldOptions world = world_on(choice, config, request.host_threads);
    world.shape_only = true;
    world.exit_when_stuck = true;
    world.representatives = choice.equal_ranks.representatives();
    const auto data = make_empty_data_module(config);
    const Activity silent("");
    const trellis_device_plugin_t& device = world.plugin->api();
    const auto ask = [&](const auto& document) {
      const char* text = nullptr;
      world.plugin->check(document(&text));
      return std::string(text);
    };
    std::string step;
    run_ranks_on(choice, config, world, [&](runtime::RankContext& rank) {
      Trainer(config, rank, data).fit([&](const StepResult& result) {
        if (rank.rank() != 0) return;
        step = ask([&](const char** text) { return device.simulate_step(result.step, text); });
      });
    });
    if (answer == StepAnswer::kStep) return "{\"simulated\":" + step + "}";
    analysis::RunFacts facts = facts_of(request, config);
    facts.hardware = numbers;
    facts.steps = 1;
    facts.routing = planned_load(config);
    return analysis::run_report(facts, json::parse(step), json::parse(ask(device.memory_report)),
                                nullptr, nullptr)
        .dump();
  }

  using MachineKey =
      std::tuple<std::string, int, std::optional<int>, std::vector<std::string>, bool>;

  std::string file_name_;
  std::optional<RunConfigFile> file_;
  std::optional<std::pair<MachineKey, sim::SystemConfig>> machine_;
};

}  // namespace
StepRunner* make_step_runner() { return new Runner; }

}  // namespace trellis::trainer
