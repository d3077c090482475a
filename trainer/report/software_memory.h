#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace trellis::trainer {

struct MemoryRunFacts;

/// What a run of published training software takes from a core's HBM, beside what this trainer takes: "inputs and outputs" (parameters, gradients,
/// optimizer states, data: those of this trainer) + scratch (what this trainer's operators hold, times what neuronx-cc reserved for the same graph over
/// it) + gradients that functionalization does not alias + the runtime's own. Of the rank and the phase that take most, but those of the update, which
/// goes tensor by tensor on a device. Null for software whose scratch no published figure tells: none, megatron.
/// `ranks`: those of trellis.memory/1.
[[nodiscard]] nlohmann::json software_memory(const MemoryRunFacts& facts, const nlohmann::json& ranks);

/// Bytes that the runtime takes from a core beside tensors, one row each with its source.
[[nodiscard]] nlohmann::json runtime_memory();
/// Their sum.
[[nodiscard]] std::int64_t runtime_bytes();

/// An estimate that leaves less than this share of a core is "tight": its largest error on published runs that fit and fill more than half of a core
/// (`trellis accuracy memory`: C01 +6.8 %, C01-4096 −3.3 %, C05 +0.4 %).
inline constexpr double kSoftwareMemoryError = 0.07;

}  // namespace trellis::trainer
