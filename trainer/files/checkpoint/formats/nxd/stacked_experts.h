#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/files/checkpoint/formats/tensor_source.h"

/// Experts as NxD's ExpertFusedColumnParallelLinear and ExpertFusedRowParallelLinear have them, a
/// matrix [in, out] each, and as this program does, whose rows are what comes out:
///
///   gate_up_proj   NxD [experts, h, gate f | up f]   here [experts · (gate f | up f), h]
///   down_proj      NxD [experts, f, h]               here [experts · h, f]
namespace trellis::checkpoint::nxd {

/// True for such a weight, and for the weight of a state.
[[nodiscard]] bool is_expert_weight(const std::string& name);

/// The name of a weight in NxD's files: mixtures of NxDT's Megatron model are below `mlp.moe`.
[[nodiscard]] std::string nxd_name(const std::string& name);

/// A checkpoint with experts as NxD has them, as one that has them in rows.
[[nodiscard]] std::unique_ptr<TensorSource> experts_in_rows(std::unique_ptr<TensorSource> source);
/// The other way. `experts`: of the model. The source outlives it.
[[nodiscard]] std::unique_ptr<TensorSource> experts_stacked(TensorSource& source,
                                                            std::int64_t experts);

}  // namespace trellis::checkpoint::nxd
