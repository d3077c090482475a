#include <fmt/format.h>

#include "base/error.h"
#include "sim/config/instance_advice.h"
#include "sim/config/system_config.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

void check_fits_machine(const RunConfig& config, const sim::SystemConfig& system) {
  const int devices = config.trainer.devices, num_nodes = config.trainer.num_nodes,
            nodes = system.nodes;
  const int logical_cores = system.logical_cores_per_node();
  const std::string& instance = system.instance.name;
  if (devices > logical_cores) {
    const std::string advice = sim::instance_advice(devices, config.trainer.lnc);
    throw ConfigError(fmt::format(
        "{}: asks for {} ranks per node, but a {} has {} logical cores: lower trainer.devices to "
        "{} or less{}{}",
        config.places.of("trainer.devices"), devices, instance, logical_cores, logical_cores,
        system.instance.has_efa ? " (and raise trainer.num_nodes to keep the number of ranks)" : "",
        advice.empty() ? "; no machine has more" : ", or choose a larger machine: " + advice));
  }
  if (num_nodes <= nodes) return;
  throw ConfigError(fmt::format(
      "{}: the run needs TP {} × PP {} × DP {} = {} ranks (trainer.devices {} × trainer.num_nodes "
      "{}), but {} × {} has "
      "{} logical cores: use {}a larger --instance, or lower tensor_model_parallel_size, "
      "pipeline_model_parallel_size or trainer.devices × trainer.num_nodes",
      config.places.of("trainer.num_nodes"), config.tp(), config.pp(), config.dp(),
      config.world_size(), devices, num_nodes, nodes, instance, std::int64_t{nodes} * logical_cores,
      system.instance.has_efa ? fmt::format("--nodes {}, ", num_nodes) : ""));
}

}  // namespace trellis::trainer
