#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/explain/neighbours.h"
#include "analysis/explain/sensitivity.h"
#include "traces/report/validity.h"

namespace trellis::analysis {

/// Words of a shell that ask for the step.
struct ExplainedRun {
  std::string config;        ///< its file and overrides
  std::string machine = {};  ///< --instance, --nodes and --set, with a space before each
};

/// Why a step is predicted as it is, how sure that is, and what would make it surer.
struct Explanation {
  ExplainedRun run;
  std::string name, instance;
  int nodes = 1;
  Validity validity;
  SensitivityResult sensitivity;
  std::vector<Neighbour> neighbours;
  std::vector<PartAccuracy> parts;
  std::size_t most_constants = 12;  ///< in the text and in the picture
};

/// Schema trellis.explain/1.
[[nodiscard]] nlohmann::json explain_json(const Explanation& explanation);
[[nodiscard]] std::string explain_text(const Explanation& explanation);
/// A tornado: one bar for each constant from the step at one end of its range to the step at the
/// other, the widest on top.
[[nodiscard]] std::string tornado_svg(const Explanation& explanation);
/// The same and the tables as one page without network.
[[nodiscard]] std::string explain_page(const Explanation& explanation);

}  // namespace trellis::analysis
