#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/sweep/candidate.h"

namespace trellis::analysis {

/// kOpen is no result: no one has simulated it yet.
enum class SweepStatus { kOpen, kOk, kOom, kIllegal, kDominated };
[[nodiscard]] std::string name(SweepStatus status);
/// True if a text is the name of a status that a result can have.
[[nodiscard]] bool is_status(const std::string& text);

/// The result of `trellis simulate` for a candidate.
struct SimulatedStep {
  std::int64_t step_time_ps = 0;
  double tokens_per_s = 0, mfu = 0;
  std::int64_t peak_bytes =
      0;  ///< of the fullest rank; with `software`, what that is estimated to take
  std::string bottleneck = {};  ///< largest part of the step's breakdown
  std::int64_t bottleneck_ps = 0;
  std::string evidence = {};
  double range_factor = 0;        ///< the step is within [time / factor, time · factor]; 0: unknown
  bool exploratory = true;        ///< outside of what published steps cover
  std::string does_not_fit = {};  ///< why the configuration's `software` would be out of memory
  bool operator==(const SimulatedStep&) const = default;
};

struct SweepRow {
  std::size_t index = 0;  ///< place in the enumeration
  Candidate candidate;
  SweepStatus status = SweepStatus::kOpen;
  std::string reason;         ///< of every status but ok
  std::int64_t bound_ps = 0;  ///< 0: illegal, nothing is known
  std::int64_t bound_bytes = 0;
  std::int64_t estimate_ps = 0;  ///< of the fast tier; 0: none
  std::string bound_by;          ///< the bound's largest part
  bool simulated = false;        ///< status and reason come from a simulation
  std::optional<SimulatedStep> step;
  bool pareto = false;  ///< ok, and no other has less of one of step time, memory and nodes without
                        ///< more of another
};

/// Best first: step time, then place. The rows with a simulated step of one number of nodes.
[[nodiscard]] std::vector<const SweepRow*> ranked(const std::vector<SweepRow>& rows, int nodes);

/// Step time of the `top`-th best simulated row of so many nodes; none while there are fewer. 0:
/// none ever, everything is simulated.
[[nodiscard]] std::optional<std::int64_t> time_to_beat(const std::vector<SweepRow>& rows, int nodes,
                                                       std::size_t top);

/// Gives every row its last status: `dominated` are rows whose bound exceeds the time to beat (also
/// those that were simulated while better ones were still unknown: the result does not depend on
/// the order of the work), and simulated ones below the `top` that another one of as many nodes
/// beats in step time and memory. Returns how many rows are open still.
[[nodiscard]] std::size_t settle(std::vector<SweepRow>& rows, std::size_t top);

/// Writes a simulated row for the journal, and reads it back. apply_result() REQUIRES the keys that
/// result_json() writes.
[[nodiscard]] nlohmann::json result_json(const SweepRow& row);
void apply_result(const nlohmann::json& result, SweepRow& row);

}  // namespace trellis::analysis
