#include "cli/options/machine.h"

#include "base/error.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::cli {

Machine machine_of(const trainer::RunConfig& config, const Machine& asked) {
  Machine machine{asked.instance, asked.nodes > 0 ? asked.nodes : config.trainer.num_nodes};
  if (!machine.instance.empty()) return machine;
  if (config.machine.instance.empty()) {
    machine.instance = sim::kTrainingInstance;
    return machine;
  }
  machine.instance = config.machine.instance;
  try {
    (void)sim::load_system(machine.instance);  // says which there are
  } catch (const ConfigError& error) {
    throw ConfigError(config.machine.where + ": " + error.what());
  }
  return machine;
}

Machine machine_of(const std::string& config_file, const std::vector<std::string>& overrides,
                   const Machine& asked) {
  const trainer::RunCheck check = trainer::RunConfigFile(config_file).check(overrides);
  return machine_of(check.problems.empty() ? check.config : trainer::RunConfig{}, asked);
}

void choose_machine(trainer::RunSource& run) {
  if (!run.instance.empty() && run.nodes > 0) return;
  const Machine machine = machine_of(run.config_file, run.overrides, {run.instance, run.nodes});
  run.instance = machine.instance;
  run.nodes = machine.nodes;
}

}  // namespace trellis::cli
