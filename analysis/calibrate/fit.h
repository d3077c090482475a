#pragma once

#include <vector>

#include "analysis/report/calibration.h"

namespace trellis::analysis {

/// A measured step compared with the parts of its prediction.
struct MeasuredParts {
  StepParts parts;
  double measured_s = 0;
};

struct StepFit {
  StepFactors factors;
  bool communication_fitted = false;
  bool at_bound = false;  ///< a factor is at the end of what is allowed: something else than
                          ///< the speed is wrong
};

/// The factors with the least sum of squares of log(predicted / measured), each between
/// StepFactors::kLeast and kMost. Communication has its own factor when there are at least
/// three rows and its share of the prediction differs by 5 points or more between them; else both
/// have one factor. REQUIRES: a row, all times above 0.
[[nodiscard]] StepFit fit_factors(const std::vector<MeasuredParts>& rows);

}  // namespace trellis::analysis
