#pragma once

#include <vector>

#include "trainer/report/calibration.h"

namespace trellis::cli {

/// A measured step beside the parts of its prediction.
struct MeasuredParts {
  trainer::StepParts parts;
  double measured_s = 0;
};

struct StepFit {
  trainer::StepFactors factors;
  bool communication_fitted = false;
  bool at_bound = false;       ///< a factor stands at the end of what is allowed: something else than the speed is wrong
};

/// The factors with the least sum of squares of log(predicted / measured), each between StepFactors::kLeast and kMost. Communication has a factor of its
/// own when there are at least three rows and its share of the prediction differs by 5 points or more between them; else both have one factor.
/// REQUIRES: a row, all times above 0.
[[nodiscard]] StepFit fit_factors(const std::vector<MeasuredParts>& rows);

}  // namespace trellis::cli
