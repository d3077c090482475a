#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace trellis::analysis {

/// Facts on which the memory of published software depends, in addition to those of this trainer's.
struct SoftwareFacts {
  std::string name = "none";  ///< key `software`
  bool functionalization =
      false;  ///< of PyTorch/XLA 2.1 to 2.4: gradients that accumulate are not aliased
  std::int64_t logits_at_cut_bytes = 0;  ///< of a micro-batch on a rank, where the software ends a
                                         ///< graph between loss and derivative; 0: one graph
};

/// The memory that a run of published training software takes from a core's HBM, next to what this
/// trainer takes. It is the sum of
/// - "inputs and outputs" (parameters, gradients, optimizer states, data: those of this trainer)
/// - scratch (what this trainer's operators hold, times the ratio of what neuronx-cc reserved for
///   the same graph to it)
/// - gradients that functionalization does not alias
/// - what lives between loss and derivative, where they are two graphs
/// - the runtime's own
/// for the rank and the phase that take most. Null for software for whose scratch there is no
/// published figure: none, megatron. `ranks`: those of trellis.memory/1. "verdict": does_not_fit
/// above the core's capacity, tight within the estimate's error ("relative_error"), else fits.
[[nodiscard]] nlohmann::json software_memory(const SoftwareFacts& facts,
                                             const nlohmann::json& ranks);

/// Bytes that the runtime takes from a core in addition to tensors, one row each with its source.
[[nodiscard]] nlohmann::json runtime_memory();
/// Their sum.
[[nodiscard]] std::int64_t runtime_bytes();

}  // namespace trellis::analysis
