#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/collectives/selection.h"
#include "sim/config/default_instance.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"

namespace trellis::analysis {

/// The request of `trellis collectives`. Rules of sizes, counts and ranks are those of nccom-test.
struct CollectiveSweep {
  std::string op;  ///< "all_reduce" or nccom-test's "allr"
  std::string instance = sim::kProgramInstance;
  sim::LoadOptions load;
  std::optional<int> ranks = {};
  std::vector<int> cores;  ///< instead of ranks
  std::string dtype = "fp32";
  Bytes min, max;
  double factor = 2;
  std::optional<sim::Algorithm> algorithm = {};
};

struct CollectiveSweepRow {
  Bytes size;              ///< that was timed: rounded down to what the ranks can share
  std::int64_t count = 0;  ///< elements
  sim::CollectiveTiming timing;
};

struct CollectiveSweepResult {
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::vector<int> cores;
  std::string dtype;
  std::vector<CollectiveSweepRow> rows;
  std::vector<std::string> notes;  ///< sizes that were rounded or left out
};

/// Throws ConfigError for what makes no sense and Error (kDoesNotFit) for buffers above a core's
/// HBM.
[[nodiscard]] CollectiveSweepResult sweep(const CollectiveSweep& request);
[[nodiscard]] std::vector<sim::SelectionRow> selection_rows(const CollectiveSweep& request);
/// "all_reduce, all_gather, …"
[[nodiscard]] std::string known_operations();

}  // namespace trellis::analysis
