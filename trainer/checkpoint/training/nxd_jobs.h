#pragma once

#include <cstdint>
#include <vector>

#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/training/save_options.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// The configuration of a run whose files NxD takes: without what it does not have. Throws
/// ConfigError for layouts that its names of files cannot say.
[[nodiscard]] trainer::RunConfig nxd_config(trainer::RunConfig config);

/// Files of a rank as NxD's save_checkpoint writes them: experts in three dimensions, parameters
/// numbered through the groups of the optimizer, of ZeRO-1 with EP the experts after the others;
/// without ZeRO-1 the dict of torch's optimizer. REQUIRES: `config` of nxd_config(). Throws
/// ConfigError for states of experts that NxD has no form of.
[[nodiscard]] std::vector<native::FileJob> nxd_jobs(const trainer::RunConfig& config,
                                                    const native::RankContent& rank,
                                                    const SaveArguments& arguments);

}  // namespace trellis::checkpoint
