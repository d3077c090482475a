#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/files/file_lock.h"

namespace trellis {

/// "process 123 on host a: trellis train x.yaml", one line: how a lock names its holder to people.
std::string this_process();

/// One process at a time writes into a folder of outputs. While it lives, the folder holds
/// kFileName, which says who writes there.
class RunLock {
 public:
  static constexpr const char* kFileName = ".trellis.lock";

  /// Throws ConfigError that names the process, host and command that write into `folder` now, or
  /// when nothing can be written there. `advice`: how to choose another folder, for the error.
  RunLock(const std::filesystem::path& folder, const std::string& advice);
  ~RunLock();
  RunLock(RunLock&& other) noexcept = default;
  RunLock& operator=(RunLock&&) = delete;

 private:
  std::filesystem::path file_;
  std::optional<FileLock> lock_;
};

}  // namespace trellis
