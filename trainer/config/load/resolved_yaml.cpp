#include "trainer/config/load/resolved_yaml.h"

#include "trainer/config/reader/yaml_writer.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
std::string to_resolved_yaml(const RunConfig& config, const YamlMap& source) {
  YamlWriter out;
  out.text("name", config.name);
  out.text("model_source", config.model_source);
  if (config.software != "none") out.text("software", config.software);
  if (!config.machine.instance.empty()) out.text("instance", config.machine.instance);
  out.integer("seed", config.seed);
  if (config.bucket_size_collectives_mb > 0)
    out.integer("bucket_size_collectives", config.bucket_size_collectives_mb);
  out.keep(source, "");
  write_trainer(out, config.trainer, source.map("trainer"));
  write_exp_manager(out, config.exp_manager, source.map("exp_manager"));
  write_distributed_strategy(out, config.distributed_strategy);
  write_data(out, config.data, source.map("data"));
  write_model(out, config, source.map("model"));
  write_precision(out, config.precision);
  return out.result();
}

}  // namespace trellis::trainer
