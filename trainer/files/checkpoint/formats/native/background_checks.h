#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace trellis::checkpoint::native {

/// Checks files one after another on a thread, so that they are read ahead of those that use them.
class BackgroundChecks {
 public:
  /// Throws for a file that is damaged.
  using Check = std::function<void(const std::string& path)>;
  explicit BackgroundChecks(Check check);
  /// Drops what is not checked yet.
  ~BackgroundChecks();
  BackgroundChecks(const BackgroundChecks&) = delete;
  BackgroundChecks& operator=(const BackgroundChecks&) = delete;

  void add(std::string path);
  /// Waits until all files are checked. Throws the first error.
  void finish();

 private:
  void work(const std::stop_token& stop);

  Check check_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::string> waiting_;
  bool busy_ = false;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace trellis::checkpoint::native
