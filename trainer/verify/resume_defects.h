#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/data_module.h"
#include "trainer/loop/training_checkpoints.h"

namespace trellis::trainer {

/// A known way to resume wrongly, put in from outside. It shows that `trellis resume-check` notices
/// it.
struct ResumeDefect {
  std::string name, description;
  std::string item;  ///< what the check must name first; see RecordDifference
  std::function<void(const TrainingState&)> state = {};  ///< after the checkpoint is loaded
  std::function<void(ResumePoint&)> data = {};           ///< where the data go on
};

[[nodiscard]] const std::vector<ResumeDefect>& resume_defects();
/// Throws ConfigError with all names when there is none of this name.
[[nodiscard]] const ResumeDefect& find_resume_defect(std::string_view name);

}  // namespace trellis::trainer
