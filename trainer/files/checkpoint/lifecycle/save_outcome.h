#pragma once

#include <string>
#include <vector>

#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/lifecycle/retention.h"

/// What follows a save. What cannot be removed is a warning: it goes when the run is started again.
namespace trellis::checkpoint {

/// Adds a complete checkpoint and removes `replaced` and those that `rule` does not keep.
void keep_saved(CheckpointFolder& folder, const KeptCheckpoint& saved,
                const std::vector<std::string>& replaced, const KeepRule& rule);
/// Warns that one could not be written, and removes what there is of it.
void drop_failed(CheckpointFolder& folder, const KeptCheckpoint& failed, const std::string& reason);

}  // namespace trellis::checkpoint
