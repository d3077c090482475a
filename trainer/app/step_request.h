#pragma once

#include <string>

#include "trainer/app/run_request.h"

namespace trellis::trainer {

/// What of a step's report is of interest.
enum class StepAnswer {
  kReport,  ///< trellis.run_report/1, as `trellis simulate --json` prints it, without its key
            ///< "portability"
  kStep,    ///< {"simulated": trellis.step_report/1}
};

}  // namespace trellis::trainer

/// One step of `trellis simulate` for a program that asks for many: nothing is written, and what a
/// call has timed helps the next one. `report` gets one JSON document. Says on stderr what went
/// wrong and returns the exit code; throws nothing. Of the request, what train alone knows, saves
/// and several steps are not read.
extern "C" int trellis_trainer_step(const trellis::trainer::RunRequest* request,
                                    trellis::trainer::StepAnswer answer, std::string* report);
using trellis_trainer_step_fn = int (*)(const trellis::trainer::RunRequest*,
                                        trellis::trainer::StepAnswer, std::string*);
