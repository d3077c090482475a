#pragma once

#include <string>

#include "trainer/checkpoint/storage/place.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// Writes a complete `checkpoint` of a run again as Megatron-core has it, in its folder:
/// `iter_0000005` of torch_dist and, last, `latest_checkpointed_iteration.txt`, as Megatron-LM's
/// `--load` expects. Returns why it could not be written, which is a warning, too; "": it was.
[[nodiscard]] std::string save_torch_dist(const trainer::RunConfig& config,
                                          const Place& checkpoint);

}  // namespace trellis::checkpoint
