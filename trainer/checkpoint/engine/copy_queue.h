#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "trainer/checkpoint/engine/state_files.h"

namespace trellis::checkpoint::native {

/// Copies of a training's tensors in host memory, on their way from the ranks to the thread that
/// writes them.
class CopyQueue {
 public:
  struct Item {
    std::size_t rank = 0;
    FileJob job;
    std::int64_t bytes = 0;
  };
  /// `ranks` copy. `most_bytes`: of copies that are not written yet; 0: no limit. A file that is
  /// larger is alone.
  CopyQueue(std::size_t ranks, std::int64_t most_bytes) : copying_(ranks), most_(most_bytes) {}

  /// Waits until a copy of `bytes` may be made.
  void reserve(std::int64_t bytes);
  void push(Item item);
  /// A rank has copied everything, or will not.
  void end_rank(bool copied_all);
  /// The next copy; waits. None: the ranks have ended.
  [[nodiscard]] std::optional<Item> pop();
  void release(std::int64_t bytes);
  /// No one writes any more, so no one waits.
  void abandon();
  [[nodiscard]] bool is_whole() const { return is_whole_; }  ///< after pop() gave none
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::size_t copying_;
  std::int64_t most_, used_ = 0, peak_ = 0;
  bool is_abandoned_ = false, is_whole_ = true;
};

}  // namespace trellis::checkpoint::native
