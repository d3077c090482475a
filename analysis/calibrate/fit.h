#pragma once

#include <vector>

#include "traces/report/calibration.h"

namespace trellis::analysis {

/// A measured time compared with the parts of its prediction: of a step both, of a kernel
/// computation only, of a collective communication only.
struct MeasuredParts {
  StepParts parts;
  double measured_s = 0;
};

struct StepFit {
  StepFactors factors;
  FactorBasis compute = FactorBasis::kShared, communication = FactorBasis::kShared;
  bool at_bound = false;  ///< a factor is at the end of what is allowed: something else than
                          ///< the speed is wrong
};

/// The factors with the least sum of squares of log(predicted / measured), each between
/// StepFactors::kLeast and kMost. A part that no row has keeps 1. Communication has its own factor
/// when its share of the prediction differs between rows: by 5 points or more between at least
/// three, or where rows have one part only; else both have one factor. REQUIRES: a row, all times
/// above 0.
[[nodiscard]] StepFit fit_factors(const std::vector<MeasuredParts>& rows);

}  // namespace trellis::analysis
