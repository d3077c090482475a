#pragma once

#include <string>
#include <vector>

#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/lifecycle/retention.h"

/// Actions after a save. A checkpoint that cannot be removed is a warning: it is removed when the
/// run is started again.
namespace trellis::checkpoint {

/// Adds a complete checkpoint and removes `replaced` and those that `rule` does not keep.
void keep_saved(CheckpointFolder& folder, const KeptCheckpoint& saved,
                const std::vector<std::string>& replaced, const KeepRule& rule);
/// Warns that one could not be written, and removes what there is of it.
void drop_failed(CheckpointFolder& folder, const KeptCheckpoint& failed, const std::string& reason);

}  // namespace trellis::checkpoint
