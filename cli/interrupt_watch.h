#pragma once

#include <filesystem>
#include <mutex>
#include <thread>

namespace trellis::cli {

/// While it lives, Ctrl-C and SIGTERM remove what a run has written so far and end the program with exit code 130: a run that answers only at its end
/// has nothing worth keeping before. Make it before any other thread: they inherit that the two signals are for the watch.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  /// The run writes there from now on. Safe from any thread.
  void owns(const std::filesystem::path& run);

 private:
  void watch(const std::stop_token& stop);

  std::mutex mutex_;
  std::filesystem::path run_;  ///< guarded by mutex_
  std::jthread thread_;
};

}  // namespace trellis::cli
