#include <fmt/format.h>

#include "base/error.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

void check_fits_machine(const RunConfig& config, const std::string& instance, int nodes, int logical_cores) {
  const int devices = config.trainer.devices, num_nodes = config.trainer.num_nodes;
  if (devices > logical_cores) {
    throw ConfigError(fmt::format("{}: asks for {} ranks per node, but a {} has {} logical cores: lower trainer.devices to {} or "
                                  "less (and raise trainer.num_nodes and --nodes to keep the number of ranks), or choose a larger --instance",
                                  config.places.of("trainer.devices"), devices, instance, logical_cores, logical_cores));
  }
  if (num_nodes <= nodes) return;
  throw ConfigError(fmt::format("{}: the run needs TP {} × PP {} × DP {} = {} ranks (trainer.devices {} × trainer.num_nodes {}), but {} × {} has "
                                "{} logical cores: use --nodes {}, a larger --instance, or lower tensor_model_parallel_size, "
                                "pipeline_model_parallel_size or trainer.devices × trainer.num_nodes",
                                config.places.of("trainer.num_nodes"), config.tp(), config.pp(), config.dp(), config.world_size(), devices, num_nodes, nodes, instance,
                                std::int64_t{nodes} * logical_cores, num_nodes));
}

}  // namespace trellis::trainer
