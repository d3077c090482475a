#include "trainer/app/prepare/full_disk.h"

#include <cerrno>

#include "base/error.h"
#include "base/output_error.h"

namespace trellis::trainer {

void fill_disk(const FaultPlan& faults, const RunConfig& config,
               checkpoint::RunCheckpoints* checkpoints) {
  if (!faults.fills_disk()) return;
  if (checkpoints == nullptr || !config.exp_manager.checkpoints.create)
    throw ConfigError(
        "--fault disk:full: expected a run that saves checkpoints, got one without; set "
        "exp_manager.create_checkpoint_callback: true");
  checkpoints->storage().faults().set_hook([&faults](const checkpoint::FaultPoint& point) {
    const bool writes = point.kind == checkpoint::FaultPoint::Kind::kWrite ||
                        point.kind == checkpoint::FaultPoint::Kind::kUpload;
    if (writes && faults.is_disk_full()) throw OutputError(point.path, ENOSPC);
  });
}

}  // namespace trellis::trainer
