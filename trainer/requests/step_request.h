#pragma once

#include <string>

#include "trainer/requests/run_request.h"

namespace trellis::trainer {

/// The part of a step's report that the caller wants.
enum class StepAnswer {
  kReport,  ///< trellis.run_report/1, as `trellis simulate --json` prints it, without its key
            ///< "portability"
  kStep,    ///< {"simulated": trellis.step_report/1}
};

/// Simulates steps for a program that asks for many: nothing is written, and what one step has
/// read, loaded and timed helps the next one.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// One step of `trellis simulate`; `report` gets one JSON document. Reports errors on stderr and
  /// returns the exit code; throws nothing. Ignores the parts of the request that only `train`
  /// uses, saves and the number of steps.
  virtual int run(const RunRequest& request, StepAnswer answer, std::string& report) = 0;
};

}  // namespace trellis::trainer
