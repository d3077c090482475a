#pragma once

#include <memory>

#include "trainer/data/data_module.h"

namespace trellis::trainer {

/// Makes the micro-batches of the next step on `workers` threads while a step runs, and once for
/// all ranks that read the same share. Their content does not depend on `workers`. An error of a
/// worker is thrown to the rank that asks for that step.
[[nodiscard]] std::shared_ptr<const DataModule> make_prefetching_data_module(
    std::shared_ptr<const DataModule> data, int workers);

}  // namespace trellis::trainer
