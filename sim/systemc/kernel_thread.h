#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"

namespace trellis::sim {

/// The one OS thread on which everything of SystemC happens. SystemC has one kernel per process,
/// which elaborates once, so the thread lives as long as the process; jobs run on it one after the
/// other.
class KernelThread {
 public:
  static KernelThread& instance();

  /// Runs `job` on the thread and returns when it is done. An Error of the job is thrown again
  /// here. Any thread may call.
  void run(const std::function<void()>& job);

 private:
  KernelThread();
  void serve();
  void execute();

  std::mutex callers_;  ///< one job at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* job_ = nullptr;
  bool done_ = false;
  // The failure crosses threads as data: exception objects share a reference count that sanitizers
  // cannot see through.
  std::optional<ExitCode> failure_;
  std::string failure_text_;
};

}  // namespace trellis::sim
