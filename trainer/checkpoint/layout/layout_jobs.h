#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// The files of `jobs_of` that a rank of a run of `config` saves alone, or as the first of equal
/// ranks. Its model and optimizer are built without memory, on the device meta: tensors have shapes
/// and types and no values, except those that are the same in every run. Independent of all other
/// ranks; may run on several threads. Throws ConfigError when the model cannot be laid out so.
[[nodiscard]] std::vector<native::FileJob> layout_jobs(
    const trainer::RunConfig& config, int rank, std::int64_t optimizer_steps,
    const std::function<std::vector<native::FileJob>(native::RankContent)>& jobs_of);

}  // namespace trellis::checkpoint
