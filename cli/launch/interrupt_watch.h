#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace trellis::cli {

/// While it lives, Ctrl-C and SIGTERM remove what the work has written so far and end the program
/// with exit code 130: work that answers only at its end has nothing worth keeping before. Make it
/// before any other thread: they inherit that the two signals are for the watch.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  /// Removes the files that exist from now on, and returns true if there was one: it is called
  /// until there is none. Safe from any thread.
  using Remove = std::function<bool()>;
  void owns(Remove remove);

 private:
  void watch(const std::stop_token& stop);

  std::mutex mutex_;
  Remove remove_;  ///< guarded by mutex_
  std::jthread thread_;
};

}  // namespace trellis::cli
