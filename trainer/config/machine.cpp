#include "trainer/config/machine.h"

#include "base/error.h"
#include "sim/config/load_system.h"

namespace trellis::trainer {

sim::SystemConfig load_machine(const RunConfig& config, const std::string& instance,
                               sim::LoadOptions options) {
  options.logical_core_size = config.trainer.lnc;
  options.software = config.software;
  try {
    return sim::load_system(instance, options);
  } catch (const ConfigError& error) {
    options.logical_core_size.reset();
    (void)sim::load_system(instance, options);  // throws when it is not for the key
    throw ConfigError(config.places.of("trainer.lnc") + ": " + error.what());
  }
}

}  // namespace trellis::trainer
