#include "sim/config/instance_advice.h"

#include "sim/config/load_system.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

std::string instance_advice(int logical_cores, std::optional<int> logical_core_size) {
  std::string text;
  for (const std::string& name : instance_names()) {
    const SystemConfig system = load_system(name);
    const int size = logical_core_size.value_or(system.instance.logical_core_size);
    if (size < 1 || size > system.chip.cores_per_hbm_stack ||
        system.instance.chips * (system.chip.physical_cores / size) < logical_cores)
      continue;
    text += (text.empty() ? "--instance " : " or ") + name;
  }
  return text;
}

}  // namespace trellis::sim
