#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/driver/reports/breakdown.h"

namespace trellis::device {

/// "model.layers.3.mlp" → "model.layers.*.mlp".
[[nodiscard]] std::string without_numbers(std::string_view path);

/// A part of one rank's step: which operator of which component took how much of it, and of which
/// sort that time is.
struct AttributionRow {
  std::string phase;      ///< the graph's: "forward", …; "" for the end of the step
  std::string component;  ///< layer path with its numbers as "*"; "" outside layers
  std::string op;    ///< kernel or communication; "launch", "latency", "idle", "copy to device",
                     ///< "copy to host"
  std::string kind;  ///< compute, memory, comm_tp, comm_pp, comm_dp, comm_cp, comm_other, bubble,
                     ///< optimizer, data, launch, other
  Picoseconds time;
  std::int64_t count = 0;
};

/// The step of one rank. The rows add up to the step time exactly; the largest come first.
struct Attribution {
  std::size_t rank = 0;  ///< its place in job.ranks
  std::vector<AttributionRow> rows;
};

/// Attributions of the rank that ends last (the lowest of these), then of the first rank of each
/// further class of ranks whose breakdowns are equal, `most` of them: a step that is compared with
/// another one is explained by a rank that both have. `breakdowns`: of break_down().
[[nodiscard]] std::vector<Attribution> attribute(
    const StepTiming& step, const std::vector<Breakdown>& breakdowns,
    const std::vector<const StepStream*>& streams,
    const std::vector<const std::vector<Graph>*>& graphs, std::size_t most);

}  // namespace trellis::device
