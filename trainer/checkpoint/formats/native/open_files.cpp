#include "trainer/checkpoint/formats/native/open_files.h"

#include <algorithm>

namespace trellis::checkpoint::native {
namespace {

constexpr std::size_t kMostOpen = 64;

}  // namespace

std::shared_ptr<OpenFiles::Slot> OpenFiles::used(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<Slot>& slot = slots_[path];
  if (!slot) slot = std::make_shared<Slot>();
  last_use_[path] = ++uses_;
  if (last_use_.size() <= kMostOpen) return slot;
  const auto oldest =
      std::min_element(last_use_.begin(), last_use_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  Slot& closed = *slots_.at(oldest->first);
  // Whoever opens it at the moment keeps it; the next call finds it again.
  if (!closed.mutex.try_lock()) return slot;
  closed.reader = nullptr;
  closed.mutex.unlock();
  last_use_.erase(oldest);
  return slot;
}

OpenFiles::Reader OpenFiles::get(const std::string& path) {
  const std::shared_ptr<Slot> slot = used(path);
  const std::scoped_lock lock(slot->mutex);
  if (!slot->reader) slot->reader = open_(path, slot->opened);
  slot->opened = true;
  return slot->reader;
}

}  // namespace trellis::checkpoint::native
