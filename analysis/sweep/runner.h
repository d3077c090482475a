#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "analysis/sweep/journal.h"
#include "analysis/sweep/ranking.h"
#include "traces/report/unused_cores.h"

namespace trellis::analysis {

struct RunOptions {
  int jobs = 0;                              ///< simulations at a time; 0: one per host core
  std::optional<std::filesystem::path> out;  ///< folder of the journal
  Shard shard;
};

/// Rows of a sweep, all judged and settled.
struct SweepResult {
  SweepSpace space;
  std::size_t top = 10;
  Shard shard;
  std::vector<SweepRow> rows;  ///< of the shard, in the order of the enumeration
  std::optional<Ranking> ranking = {};
  /// Use of the machine's cores, the same for every candidate.
  [[nodiscard]] CoreUse cores(int nodes) const {
    return {nodes * space.space.ranks_per_node, nodes * space.space.cores_per_node};
  }
};

/// Judges all candidates, then simulates those that are left in the order of their bounds until
/// every remaining bound exceeds the time to beat. What the journal knows is not simulated again.
/// Throws Error (kInterrupted) after a signal: finished rows are in the journal. Throws Error when
/// a simulation ends in any way but a result, a mistake of the layout (it is illegal then) or out
/// of memory.
[[nodiscard]] SweepResult run_sweep(const SweepRequest& request, const RunOptions& options);

/// The whole sweep from the journals of its shards. Throws ConfigError as merge_journals, and when
/// a shard has not been finished.
[[nodiscard]] SweepResult merge_sweep(const std::vector<std::filesystem::path>& folders);

/// A row's result from what its simulation printed on stdout.
[[nodiscard]] SimulatedStep read_simulation(const std::string& report);

}  // namespace trellis::analysis
