#pragma once

#include <string>

#include "analysis/sweep/runner.h"

namespace trellis::analysis {

/// "trellis simulate …" for a shell, which gives the row's figures again.
[[nodiscard]] std::string reproduce(const SweepResult& result, const SweepRow& row);

}  // namespace trellis::analysis
