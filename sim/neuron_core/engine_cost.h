#pragma once

#include <cstdint>

#include "base/units.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// The time that one instruction costs on its engine. The engine takes the next independent
/// instruction after `occupancy` (the array: and `overhead`, which only its full clock shows); the
/// semaphores see the result `latency` later, and an instruction of the same engine that reads it
/// begins `dependent_delay` after that. Formulas: NKI ISA pages (commit 1db4d74e) and architecture
/// guides; README, "Timing rules of a core".
struct EngineCost {
  Picoseconds occupancy;
  Picoseconds latency;
  Picoseconds dependent_delay;
  Picoseconds overhead;
};

/// REQUIRES: the instruction is legal on the engine (validate) and neither DMA nor control.
[[nodiscard]] EngineCost engine_cost(const isa::Instruction& instruction, isa::Engine engine,
                                     const isa::Program& program, const CoreConfig& core);

/// ScalarE evaluates functions by tables that are loaded when the set changes. 0: any set will do.
[[nodiscard]] std::uint8_t activation_table(const isa::Instruction& instruction,
                                            isa::Engine engine);

/// True when `later` reads what `earlier`, before it on the same engine, writes: it then waits for
/// the whole latency.
[[nodiscard]] bool depends_on(const isa::Instruction& later, const isa::Instruction& earlier,
                              const isa::Program& program);

}  // namespace trellis::sim
