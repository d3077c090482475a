#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "analysis/explain/constants.h"
#include "analysis/sweep/child_processes.h"

namespace trellis::analysis {

/// The time of a step with a constant at one end of its range.
struct EndOfRange {
  std::string value;
  std::optional<std::int64_t> step_ps;  ///< none: such a machine is refused, see `problem`
  std::string problem = {};
};

struct Sensitivity {
  UncertainConstant constant;
  EndOfRange least, most;
  /// The larger of the two changes of `step_ps`, in picoseconds.
  [[nodiscard]] std::int64_t swing_ps(std::int64_t step_ps) const;
};

/// The step's report (trellis.run_report/1), and the step with each constant at each end of its
/// range, everything else as it is: what `trellis simulate --set KEY=VALUE` gives, to the
/// picosecond. Those of the largest change first, equal ones by key.
struct SensitivityResult {
  std::string report;
  std::int64_t step_ps = 0;
  std::vector<Sensitivity> constants;
};

/// `jobs`: simulations at a time. `scratch`: see ChildProcesses. Throws Error with the exit code of
/// the step when it cannot be simulated, Error (kInterrupted) after a signal.
[[nodiscard]] SensitivityResult measure_sensitivity(const StepQuestion& step,
                                                    std::vector<UncertainConstant> constants,
                                                    std::size_t jobs,
                                                    const std::filesystem::path& scratch);

}  // namespace trellis::analysis
