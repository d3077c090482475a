#include "trainer/config/step_place.h"

#include <algorithm>

#include "sim/config/software_config.h"

namespace trellis::analysis {

StepPlace step_place(const trainer::RunConfig& config, const std::string& instance, int nodes,
                     const std::vector<std::string>& hardware) {
  StepPlace place;
  place.instance = instance;
  place.software = sim::stack_name(config.software);
  place.parameters = config.num_parameters();
  place.sequence_length = config.model.encoder_seq_length;
  place.nodes = nodes;
  place.tp = config.tp();
  place.pp = config.pp();
  place.cp = config.cp();
  place.dp = std::max(1, config.dp());
  place.experts = config.model.moe ? config.model.moe->num_experts : 0;
  place.lora = config.model.lora ? 1 : 0;
  if (config.distributed_strategy.fsdp) place.unlike.emplace_back("fully sharded weights");
  for (const std::string& number : hardware)
    place.unlike.push_back("another hardware number: " + number);
  return place;
}

}  // namespace trellis::analysis
