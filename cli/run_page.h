#pragma once

#include <filesystem>

#include "trainer/report/report_file.h"

namespace trellis::cli {

/// One page of a run that needs no network, with its pipeline drawn in its own times where hparams.yaml says which stage holds what.
void write_run_page(const trainer::ReportFile& run, const std::filesystem::path& html);

}  // namespace trellis::cli
