#include "trainer/files/checkpoint/formats/native/open_files.h"

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
  closed.file = nullptr;
  closed.mutex.unlock();
  last_use_.erase(oldest);
  return slot;
}

OpenFiles::Reader OpenFiles::get(const std::string& path, std::int64_t entry_offset,
                                 std::int64_t entry_length) {
  const std::shared_ptr<Slot> slot = used(path);
  const std::scoped_lock lock(slot->mutex);
  if (!slot->file) slot->file = open_(path, slot->opened);
  slot->opened = true;
  if (slot->reader && slot->entry_offset == entry_offset) return slot->reader;
  File file = slot->file;
  if (entry_length > 0) {
    const std::string name = file->name() + ", entry at " + std::to_string(entry_offset);
    file = file_range(std::move(file), entry_offset, entry_length, name);
  }
  slot->reader = std::make_shared<const TorchFileReader>(std::move(file), classes_, checks_);
  slot->entry_offset = entry_offset;
  return slot->reader;
}

}  // namespace trellis::checkpoint::native
