#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trainer/config/run_source.h"

/// Changes of a configuration that could make it fit: those that are tried, in which order, and
/// those that need no try. LibTorch-free.
namespace trellis::analysis {

/// A run that differs from the one that was asked for.
struct MemoryChange {
  trainer::RunSource run;
  std::string arguments;  ///< what differs, as one types it
  int cost = 0;  ///< how much changes: settings that cost no time first, then recomputation, other
                 ///< layouts, more hardware
  double lower_bound =
      0;             ///< bytes per core that weights, gradients and optimizer states take at least
  double guess = 0;  ///< with activations, optimistically
  std::int64_t capacity = 0;   ///< of a core, bytes
  bool more_hardware = false;  ///< more cores, nodes or another instance
};

/// One setting changed: ZeRO-1, sequence parallelism, recomputation, half the micro-batch, TP × 2,
/// PP × 2, twice the nodes, each instance whose cores have more memory. Cheapest first. `plan`: the
/// run's trellis.memory_plan/1. Throws ConfigError when the configuration is no legal one.
[[nodiscard]] std::vector<MemoryChange> single_changes(const trainer::RunSource& run,
                                                       const nlohmann::json& plan);
/// Several settings changed: the variants of each layout (factors of TP, PP and ranks) that may fit
/// as far as one can guess, cheapest first; layouts by what they cost themselves.
[[nodiscard]] std::vector<std::vector<MemoryChange>> combined_changes(const trainer::RunSource& run,
                                                                      const nlohmann::json& plan);
/// Why the rules of `trellis validate`, or the machine, forbid the run; "": legal.
[[nodiscard]] std::string why_illegal(const trainer::RunSource& run);

}  // namespace trellis::analysis
