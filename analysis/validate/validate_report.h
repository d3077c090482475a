#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/problem.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

/// Describes what a legal configuration builds: sizes, stages, groups, schedule, optimizer; what is
/// not supported; warnings.
[[nodiscard]] std::string validate_text(const std::string& file, const trainer::RunCheck& check);
/// One problem per line, and their number.
[[nodiscard]] std::string problems_text(const std::string& file, const trainer::RunCheck& check);
/// The check's problems as records.
[[nodiscard]] std::vector<Problem> problems_of(const std::string& file,
                                               const trainer::RunCheck& check);
/// Schema trellis.validate/2: `ok`, `problems` as records (ci_reports.h), `warnings`, and for a
/// legal file `unsupported` and `plan`.
[[nodiscard]] nlohmann::json validate_json(const std::string& file, const trainer::RunCheck& check);

}  // namespace trellis::analysis
