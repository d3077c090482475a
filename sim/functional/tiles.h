#pragma once

#include "sim/functional/exact.h"

namespace trellis::sim::functional {

/// Executes an instruction on whole tiles of fp32: operands are gathered once, rows run through
/// plain loops. Gives the bits of execute_exact with Arithmetic::kFp32, because every stage rounds
/// to fp32 there too, in the same order. Returns false, with nothing done, for instructions that it
/// does not cover.
[[nodiscard]] bool execute_tiles(const isa::Instruction& instruction, EngineState& state,
                                 Memory& memory);

/// sums[m][n] += Σ_p weights[p][m] · moving[p][n], p ascending, each product and sum rounded to
/// fp32. `weights`: rows of `weight_columns`; `moving` and `sums`: rows of `columns`.
void multiply_add(const float* weights, std::int64_t weight_columns, const float* moving,
                  std::int64_t contraction, std::int64_t rows, std::int64_t columns, float* sums);

}  // namespace trellis::sim::functional
