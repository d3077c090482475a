#include "sim/config/software_memory.h"

#include <vector>

#include "sim/config/parameter_reader.h"

namespace trellis::sim {
namespace {

std::string source_of(const std::vector<Parameter>& parameters, const std::string& key) {
  for (const Parameter& parameter : parameters) {
    if (parameter.key == key) return parameter.source;
  }
  return "";
}

}  // namespace

SoftwareMemory load_software_memory() {
  const YamlDocument document = YamlDocument::load(config_directory() / "software" / "memory.yaml");
  std::vector<Parameter> parameters;
  ParameterReader r(document.root(), "", &parameters);
  SoftwareMemory memory;
  ParameterReader breakdown = r.section("breakdown");
  memory.total = breakdown.read<double>("total");
  memory.inputs_outputs = breakdown.read<double>("inputs_outputs");
  memory.scratch = breakdown.read<double>("scratch");
  memory.dma_rings = breakdown.read<double>("dma_rings");
  breakdown.reject_unknown();
  memory.counted_scratch = r.read<double>("counted_scratch");
  ParameterReader cut = r.section("cut");
  memory.cut_logits = cut.read<double>("logits");
  memory.cut_micro_batches = cut.read<double>("micro_batches");
  cut.reject_unknown();
  memory.error = r.read<double>("error");
  r.reject_unknown();
  document.problems().throw_if_any();
  memory.breakdown_source = source_of(parameters, "breakdown.total");
  memory.cut_source = source_of(parameters, "cut.logits");
  return memory;
}

}  // namespace trellis::sim
