#pragma once

#include <span>
#include <string_view>

namespace trellis::analysis {

/// How a key of NeMo 1.x or NeMo-Megatron for Neuron is imported whose meaning is not that of the
/// key of the same name here. Source: NxDT's "Migrating from NeMo / NNM to NxD Training" tables.
struct NemoRow {
  enum class Does {
    kMoves,    ///< to `target`, with its value
    kIgnored,  ///< any value; `note` says why
    kNeutral   ///< unsupported, except for the values `target`, separated by '|'
  };
  std::string_view keys;  ///< dotted; several are separated by spaces. `model.tp_comm_*`: a prefix
  Does does = Does::kMoves;
  std::string_view target = {};
  std::string_view note = {};
};

[[nodiscard]] std::span<const NemoRow> nemo_rows();

}  // namespace trellis::analysis
