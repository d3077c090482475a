#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/sweep/row.h"
#include "sim/config/default_instance.h"

namespace trellis::analysis {

/// The user's request: a part of it decides which rows there are, the rest how the work is done.
struct SweepRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string instance = sim::kTrainingInstance;
  std::vector<int> nodes;              ///< each of them; empty: `chips`
  int chips = 0;                       ///< instead of nodes: a part of one instance, or whole ones
  std::int64_t global_batch_size = 0;  ///< 0: the configuration's
  std::vector<std::string> only, fix;  ///< "tp=4,8"; "recompute"
  bool fast = false;  ///< estimate the open rows first, and simulate only those that may be among
                      ///< the best by that
  std::size_t top = 10;  ///< of each number of nodes; 0: simulate all
};

/// The request against its configuration and its machine.
struct SweepSpace {
  SweepRequest request;
  Space space;
  std::vector<Candidate> candidates;
  [[nodiscard]] std::vector<std::string> overrides(
      const Candidate& candidate) const;  ///< the user's, then the layout's
  /// Arguments of the program that simulate it: "simulate", the configuration, overrides, machine.
  [[nodiscard]] std::vector<std::string> simulate_arguments(const Candidate& candidate) const;
};

/// Throws ConfigError: a configuration that is no YAML or whose sizes cannot be read, an unknown
/// instance, chips that make no whole instances, overrides of what the sweep itself varies, an axis
/// that is not there, restrictions that leave nothing.
[[nodiscard]] SweepSpace open_space(const SweepRequest& request);

/// Judges every candidate by the rules of `trellis validate`, by what this version supports and
/// by the closed bounds, on `threads` threads (0: one per host core): illegal, oom, or open with
/// its bounds.
[[nodiscard]] std::vector<SweepRow> judge(const SweepSpace& space, int threads);

/// The inputs that decide the rows, as dotted keys and values: the settings of the first legal
/// candidate, the axes, the machine's numbers. Two sweeps with the same facts have the same rows.
[[nodiscard]] nlohmann::json facts_of(const SweepSpace& space, const std::vector<SweepRow>& rows);

}  // namespace trellis::analysis
