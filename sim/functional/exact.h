#pragma once

#include <cstdint>
#include <vector>

#include "sim/functional/memory.h"

namespace trellis::sim::functional {

/// The arithmetic of the engines: each stage of an instruction rounds to fp32. kDouble rounds only
/// what is stored, and shows how large the error of the other is.
enum class Arithmetic : std::uint8_t { kFp32, kDouble };

/// The values that an engine keeps between instructions.
struct EngineState {
  std::vector<double> weights;  ///< the array's contents, [partition][column]
  std::vector<float> tile;      ///< the same, when tiles.h loaded them
  std::int64_t weight_columns = 0;
  std::uint64_t draws = 0;
};

/// Executes one instruction element by element, as `isa::Opcode` defines it: the oracle of tiles.h.
/// Loops and rotation are resolved. Sums run in ascending order of elements, and of partitions in a
/// matrix product. Instructions whose operands are all whole numbers are exact. Throws
/// std::runtime_error for what needs the pair's other core.
void execute_exact(const isa::Instruction& instruction, EngineState& state, Memory& memory,
                   Arithmetic arithmetic);

/// True when the DMA engines execute it.
[[nodiscard]] bool is_dma(isa::Opcode opcode);
/// Every operand holds whole numbers: no stage rounds.
[[nodiscard]] bool is_whole(const isa::Instruction& instruction);

}  // namespace trellis::sim::functional
