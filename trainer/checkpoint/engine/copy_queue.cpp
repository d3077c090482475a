#include "trainer/checkpoint/engine/copy_queue.h"

#include <algorithm>

namespace trellis::checkpoint::native {

void CopyQueue::reserve(std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return most_ == 0 || used_ == 0 || used_ + bytes <= most_ || is_abandoned_; });
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

void CopyQueue::push(Item item) {
  {
    const std::scoped_lock lock(mutex_);
    if (is_abandoned_) return;
    items_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void CopyQueue::end_rank(bool copied_all) {
  {
    const std::scoped_lock lock(mutex_);
    --copying_;
    is_whole_ = is_whole_ && copied_all;
  }
  changed_.notify_all();
}

std::optional<CopyQueue::Item> CopyQueue::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !items_.empty() || copying_ == 0; });
  if (items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  return item;
}

void CopyQueue::release(std::int64_t bytes) {
  {
    const std::scoped_lock lock(mutex_);
    used_ -= bytes;
  }
  changed_.notify_all();
}

void CopyQueue::abandon() {
  {
    const std::scoped_lock lock(mutex_);
    is_abandoned_ = true;
    items_.clear();
  }
  changed_.notify_all();
}

}  // namespace trellis::checkpoint::native
