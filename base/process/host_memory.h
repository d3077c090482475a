#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trellis {

/// The memory that this process may still allocate, and the limit that sets it.
struct HostMemory {
  std::int64_t available_bytes = 0;
  /// "MemAvailable of /proc/meminfo", "memory.max of the cgroup", "RLIMIT_AS (ulimit -v)"
  std::string limit;
};

/// The smallest of the machine's free memory and swap, the limits of the process's control groups
/// (versions 1 and 2), and RLIMIT_AS. What cannot
/// be read limits nothing. `root`: where proc/ and sys/fs/cgroup/ lie.
[[nodiscard]] HostMemory available_host_memory(const std::filesystem::path& root = "/");

}  // namespace trellis
