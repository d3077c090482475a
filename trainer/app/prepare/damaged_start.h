#pragma once

#include "trainer/files/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/requests/run_request.h"

namespace trellis::trainer {

/// A run was to go on from a checkpoint that is not what was saved. When a person started it, it
/// ends with an error that has the command for the newest older one that is whole. A start that no
/// one watches (a restart of --max-restarts or of a launcher, resume_if_exists in the file) sets
/// the damaged one aside and begins again; of several processes the launcher starts all of them
/// again. Throws ConfigError; where the run begins again it does not return.
[[noreturn]] void after_damage(const RunRequest& request,
                               const checkpoint::native::DamagedCheckpoint& damage);

}  // namespace trellis::trainer
