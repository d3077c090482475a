#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/collectives/selection.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"

namespace trellis::cli {

/// What `trellis collectives` is asked for. Size, count and rank rules are those of nccom-test.
struct SweepRequest {
  std::string op;  ///< "all_reduce" or nccom-test's "allr"
  std::string instance = "trn2.48xlarge";
  sim::LoadOptions load;
  std::optional<int> ranks = {};
  std::vector<int> cores;  ///< instead of ranks
  std::string dtype = "fp32";
  Bytes min, max;
  double factor = 2;
  std::optional<sim::Algorithm> algorithm = {};
};

struct SweepRow {
  Bytes size;              ///< that was timed: rounded down to what the ranks can share
  std::int64_t count = 0;  ///< elements
  sim::CollectiveTiming timing;
};

struct SweepResult {
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::vector<int> cores;
  std::string dtype;
  std::vector<SweepRow> rows;
  std::vector<std::string> notes;  ///< sizes that were rounded or left out
};

/// Throws ConfigError for what makes no sense and Error (kDoesNotFit) for buffers above a core's HBM.
[[nodiscard]] SweepResult sweep(const SweepRequest& request);
[[nodiscard]] std::vector<sim::SelectionRow> selection_rows(const SweepRequest& request);
/// "all_reduce, all_gather, …"
[[nodiscard]] std::string known_operations();

}  // namespace trellis::cli
