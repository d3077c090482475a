#pragma once

#include <string>

#include "traces/report/report_file.h"

namespace trellis::cli {

/// One page of a run as HTML that needs no network, with its pipeline drawn in its own times where
/// hparams.yaml says which stage holds what.
[[nodiscard]] std::string run_page(const analysis::ReportFile& run);

}  // namespace trellis::cli
