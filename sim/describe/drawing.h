#pragma once

#include <string>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// The machine as Graphviz text with fixed places: `dot -Tsvg` renders it. Chips as a grid per
/// instance, coloured by NUMA node; each wire is one line (both directions), those that wrap around
/// a torus are stubs that name the chip at their other end. Links between instances are one line
/// per pair of instances.
[[nodiscard]] std::string drawing(const SystemConfig& system);

}  // namespace trellis::sim
