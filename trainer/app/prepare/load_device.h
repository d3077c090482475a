#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The ranks as a mesh, fastest axis first, and along which axes they are equal.
struct EqualRanks {
  std::vector<int> mesh;
  std::vector<bool> along;
  /// Ascending; empty: every rank represents itself.
  [[nodiscard]] std::vector<int> representatives() const;
};

/// The device of a run's ranks, as the command line gave it.
struct DeviceChoice {
  std::string device;    ///< "cpu", or what the plugin calls its own
  std::string instance;  ///< the machine to emulate
  int nodes = 1;
  bool shape_only = false;
  bool record = true;                      ///< off: operations run, nothing is simulated
  std::vector<std::string> hardware = {};  ///< see RunRequest
  bool calibrated = true;
  std::vector<std::string> slow = {};  ///< see RunRequest
  bool unlimited_memory = false;       ///< what does not fit is given and counted; needs shape_only
  bool replay = false;  ///< passes that repeat are not executed; needs shape_only and record
  EqualRanks equal_ranks = {};  ///< not empty: of equal ranks one runs; needs shape_only
  std::string plugin = {}, library = {}, backend = {};  ///< see RunRequest
  int first_rank = 0;                                   ///< lowest rank of this process
  int process_ranks = 0;                                ///< how many it runs; 0: all
  int first_local_rank = 0;                             ///< its place among the ranks of this host
};

/// The device that a request names: members of RunRequest's names.
template <typename Request>
[[nodiscard]] DeviceChoice device_choice(const Request& request) {
  DeviceChoice choice;
  choice.device = request.device;
  choice.instance = request.instance;
  choice.plugin = request.device_plugin;
  choice.library = request.device_library;
  choice.backend = request.backend;
  return choice;
}

/// The library that provides the device: a path, or a name for DevicePlugin::path_of. "": none, for
/// the CPU's own kernels without a plugin.
[[nodiscard]] std::string provider_of(const DeviceChoice& choice);
/// True if the run uses an emulated machine rather than a device of LibTorch.
[[nodiscard]] bool is_emulated(const DeviceChoice& choice);

/// True if tensors of the run lie in this host's memory: on the CPU, and on an emulated machine.
[[nodiscard]] bool computes_in_host_memory(const DeviceChoice& choice);

/// Which ranks of a configuration are equal: those of one pipeline stage. TP ranks hold shards of
/// one shape, DP ranks do the same with other data. The mesh is that of the rank formula: TP, CP,
/// DP, PP.
[[nodiscard]] EqualRanks equal_ranks(const RunConfig& config);

/// Gives the configuration what it takes from the machine, the order of its key/value copies, and
/// checks that the ranks fit. Ranks of other devices need no room on it. Returns the emulated
/// machine's numbers by key, with their units; none for other devices. Throws ConfigError.
std::map<std::string, std::string> use_machine(const DeviceChoice& choice, RunConfig& config);
/// The same of a machine that was loaded for `config` and an emulated device.
std::map<std::string, std::string> use_machine(const sim::SystemConfig& system, RunConfig& config);

/// The plugin, set up for the run's ranks; null for the CPU without one. Throws ConfigError when
/// the plugin is another device's.
const runtime::DevicePlugin* load_device(const DeviceChoice& choice, const RunConfig& config);

/// A world of the configuration's ranks on the device of `choice`, which is set up for them.
[[nodiscard]] runtime::WorldOptions world_on(const DeviceChoice& choice, const RunConfig& config,
                                             int host_threads);

/// runtime::run_ranks on the device of `choice`. With replay: where a rank's passes turn out not to
/// repeat, all ranks run once more, on the device set up again, and execute every pass.
/// `world.replay` is set here.
void run_ranks_on(DeviceChoice choice, const RunConfig& config, runtime::WorldOptions world,
                  const std::function<void(runtime::RankContext&)>& body);

}  // namespace trellis::trainer
