#include "trainer/files/checkpoint/storage/fault_points.h"

#include <utility>

namespace trellis::checkpoint {

const char* name(FaultPoint::Kind kind) {
  switch (kind) {
    case FaultPoint::Kind::kMakeDirectory: return "make directory";
    case FaultPoint::Kind::kWrite: return "write";
    case FaultPoint::Kind::kSync: return "sync";
    case FaultPoint::Kind::kRename: return "rename";
    case FaultPoint::Kind::kUpload: return "upload";
    case FaultPoint::Kind::kDelete: return "delete";
  }
  return "?";
}

void FaultPoints::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hooked_ = static_cast<bool>(hook);
  hook_ = std::move(hook);
  stopped_ = false;
  reached_ = 0;
}

void FaultPoints::reach(FaultPoint::Kind kind, const std::string& path) {
  if (stopped_) throw StorageStopped();
  if (!hooked_) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) throw StorageStopped();
  if (!hook_) return;
  try {
    hook_({.number = ++reached_, .kind = kind, .path = path});
  } catch (const StorageStopped&) {
    stopped_ = true;
    throw;
  }
}

}  // namespace trellis::checkpoint
