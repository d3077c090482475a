#pragma once

#include "sim/isa/types.h"

namespace trellis::sim::isa {

/// The first NeuronCore version (2, 3, 4) that has it; 2 is the oldest one modelled. Sources: NKI
/// ISA pages and architecture guides.
[[nodiscard]] int first_core_version(Opcode opcode);
[[nodiscard]] int first_core_version(DType dtype);
[[nodiscard]] int first_core_version(MatmulMode mode);

}  // namespace trellis::sim::isa
