#pragma once

#include <string>
#include <vector>

#include "sim/config/parameter_reader.h"

namespace trellis::sim {

/// Interconnect numbers that all instances of a generation share.
struct Interconnect {
  LinkConfig on_chip;
  double neuron_link_efficiency = 1;  ///< what a transfer gets of a link's rate
  Picoseconds neuron_link_latency, efa_latency;
};

// The parts of a hardware file that say how machines are wired. Mistakes become problems of the
// document.
[[nodiscard]] Interconnect read_interconnect(ParameterReader r);
[[nodiscard]] NetworkConfig read_network(ParameterReader r);
/// `out` and `overlay` may be null: check only.
[[nodiscard]] InstanceConfig read_instance(const YamlMap& map, const std::string& instance,
                                           const Interconnect& shared, std::vector<Parameter>* out,
                                           Overlay* overlay);
[[nodiscard]] std::vector<Contradiction> read_contradictions(const YamlMap& root);

/// Throws ConfigError when system.nodes instances cannot be wired: UltraServers with chip to chip
/// links are whole, pairs or single.
void check_nodes(const SystemConfig& system);

}  // namespace trellis::sim
