#include "trainer/app/prepare/load_device.h"

#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"
#include "trainer/app/prepare/software_facts.h"
#include "trainer/app/prepare/wide_products.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/machine.h"
#include "trainer/pipeline/replay.h"

namespace trellis::trainer {

namespace {
constexpr const char* kTorchDevice = "torch_device";
}  // namespace

std::vector<int> EqualRanks::representatives() const {
  return mesh.empty() ? std::vector<int>{}
                      : sim::RankFold::along_axes(mesh, along).representatives();
}

namespace {

/// Each rank that runs has a device index.
void check_ranks_that_differ(const RunConfig& config, const char* axis, int size,
                             const std::string& why, const std::string& instead) {
  constexpr int kMost = 127;  // c10::DeviceIndex is a signed byte
  const int differ = config.pp() * size;
  if (differ <= kMost) return;
  throw ConfigError(c10::str(
      "equal ranks are simulated once, but ", why, ": expected at most ", kMost,
      " ranks that differ, because LibTorch's device index is a signed byte, got ", differ, " (PP ",
      config.pp(), " × ", axis, " ", size, "): ", instead, " or fewer pipeline stages"));
}

}  // namespace

EqualRanks equal_ranks(const RunConfig& config) {
  if (config.cp() > 1) {
    check_ranks_that_differ(
        config, "CP", config.cp(),
        "of a sequence each context-parallel rank has other blocks to attend to",
        "take fewer context-parallel ranks");
    return {{config.tp(), config.cp(), config.dp(), config.pp()}, {true, false, true, false}};
  }
  // Expert-parallel ranks are equal when their experts get equally many tokens.
  const bool even = !config.model.moe || config.model.moe->simulated_shares.empty();
  if (!even) {
    check_ranks_that_differ(
        config, "EP", config.ep(),
        "--routing gives each expert-parallel rank experts with other numbers of tokens",
        "take --routing balanced, fewer expert-parallel ranks");
  }
  return {{config.tp(), config.ep(), config.dp() * config.cp() / config.ep(), config.pp()},
          {true, even, true, false}};
}

std::map<std::string, std::string> use_machine(const DeviceChoice& choice, RunConfig& config) {
  const bool emulates = is_emulated(choice);
  sim::LoadOptions load;
  if (emulates) {
    load.nodes = choice.nodes;
    load.overrides = choice.hardware;
    load.calibrated = choice.calibrated;
  }
  if (emulates) return use_machine(load_machine(config, choice.instance, load), config);
  config.hardware = sim::load_system(choice.instance, load).chip.generation;
  return {};
}

std::map<std::string, std::string> use_machine(const sim::SystemConfig& system, RunConfig& config) {
  config.hardware = system.chip.generation;
  std::map<std::string, std::string> numbers;
  check_fits_machine(config, system);
  for (const sim::Parameter& parameter : system.parameters)
    numbers[parameter.key] = parameter.value;
  return numbers;
}

std::string provider_of(const DeviceChoice& choice) {
  if (!choice.plugin.empty()) return choice.plugin;
  if (choice.device == "neuron" && choice.library.empty())
    return runtime::DevicePlugin::default_path();
  const bool is_plain_cpu =
      choice.device == "cpu" && choice.library.empty() && choice.backend.empty();
  return is_plain_cpu ? "" : kTorchDevice;
}

bool is_emulated(const DeviceChoice& choice) {
  const std::string provider = provider_of(choice);
  if (provider.empty()) return false;
  using runtime::DevicePlugin;
  return DevicePlugin::load(DevicePlugin::path_of(provider)).api().simulate_step != nullptr;
}

bool computes_in_host_memory(const DeviceChoice& choice) {
  return choice.device == "cpu" || is_emulated(choice);
}

namespace {

std::string torch_device_options(const DeviceChoice& choice, const RunConfig& config) {
  return nlohmann::json({{"schema", "trellis.torch_device_options/1"},
                         {"device", choice.device},
                         {"library", choice.library},
                         {"backend", choice.backend},
                         {"world_size", config.world_size()},
                         {"first_rank", choice.first_rank},
                         {"first_local_rank", choice.first_local_rank},
                         {"seed", config.seed}})
      .dump();
}

/// How traces name the place of a rank.
nlohmann::json named_axes(const RunConfig& config) {
  nlohmann::json axes = nlohmann::json::array();
  const auto add = [&](const char* name, int stride, int size) {
    axes.push_back({{"name", name}, {"stride", stride}, {"size", size}});
  };
  add("PP", config.tp() * config.cp() * config.dp(), config.pp());
  add("DP", config.tp() * config.cp(), config.dp());
  if (config.cp() > 1) add("CP", config.tp(), config.cp());
  if (config.ep() > 1) add("EP", config.tp(), config.ep());
  add("TP", 1, config.tp());
  return axes;
}

std::string emulator_options(const DeviceChoice& choice, const RunConfig& config) {
  nlohmann::json options = {{"schema", "trellis.device_options/1"},
                            {"instance", choice.instance},
                            {"nodes", choice.nodes},
                            {"world_size", config.world_size()},
                            {"axes", named_axes(config)},
                            {"first_rank", choice.first_rank},
                            {"process_ranks", choice.process_ranks},
                            {"shape_only", choice.shape_only},
                            {"record", choice.record},
                            {"hardware", choice.hardware},
                            {"calibrated", choice.calibrated},
                            {"software", config.software},
                            {"reads_forward", reads_forward(config)},
                            {"unlimited_memory", choice.unlimited_memory},
                            {"slow", choice.slow},
                            {"replay", choice.replay}};
  if (!choice.equal_ranks.mesh.empty())
    options["equal_ranks"] = {{"mesh", choice.equal_ranks.mesh},
                              {"along", choice.equal_ranks.along}};
  if (config.trainer.lnc) options["logical_core_size"] = *config.trainer.lnc;
  return options.dump();
}

void refuse_other_devices(const DeviceChoice& choice, const runtime::DevicePlugin& plugin) {
  if (!plugin.serves(choice.device)) {
    throw ConfigError("--device " + choice.device + ": expected \"cpu\" or \"" +
                      plugin.api().device_type + "\", which the plugin provides");
  }
  if (plugin.api().device_type == nullptr) return;
  for (const auto& [option, value] :
       {std::pair("--device-library", &choice.library), std::pair("--backend", &choice.backend)}) {
    if (value->empty()) continue;
    throw ConfigError(std::string(option) + " " + *value + ": is for a device of LibTorch, but " +
                      plugin.api().provider + " provides " + choice.device +
                      ": leave it out, or add --device-plugin torch_device");
  }
}

/// Ring attention calls attention kernels that the CPU and the emulator have.
void refuse_context_parallelism(const DeviceChoice& choice, const RunConfig& config) {
  if (config.cp() == 1 || computes_in_host_memory(choice)) return;
  throw ConfigError("--device " + choice.device +
                    ": ring attention is supported on neuron and cpu only, but "
                    "context_parallel_size is " +
                    std::to_string(config.cp()) + ": set it to 1");
}

}  // namespace

const runtime::DevicePlugin* load_device(const DeviceChoice& choice, const RunConfig& config) {
  use_wide_products();  // any device may fall back to the CPU's kernels
  const std::string provider = provider_of(choice);
  if (provider.empty()) return nullptr;
  const runtime::DevicePlugin& plugin =
      runtime::DevicePlugin::load(runtime::DevicePlugin::path_of(provider));
  refuse_other_devices(choice, plugin);
  refuse_context_parallelism(choice, config);
  const std::string options = plugin.api().device_type == nullptr
                                  ? torch_device_options(choice, config)
                                  : emulator_options(choice, config);
  plugin.check(plugin.api().configure(options.c_str()));
  return &plugin;
}

runtime::WorldOptions world_on(const DeviceChoice& choice, const RunConfig& config,
                               int host_threads) {
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  world.device_type = choice.device;
  world.backend = choice.backend;
  world.host_threads = host_threads;
  world.plugin = load_device(choice, config);
  return world;
}

void run_ranks_on(DeviceChoice choice, const RunConfig& config, runtime::WorldOptions world,
                  const std::function<void(runtime::RankContext&)>& body) {
  world.replay = choice.replay;
  try {
    return runtime::run_ranks(world, body);
  } catch (const PassesDiffer& error) {
    log_warning(std::string(error.what()) + "; starting again so");
  }
  choice.replay = world.replay = false;
  load_device(choice, config);
  runtime::run_ranks(world, body);
}

}  // namespace trellis::trainer
