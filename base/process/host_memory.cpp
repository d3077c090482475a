#include "base/process/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace trellis {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// The number of a file that holds one; "max" and what cannot be read: none.
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

/// The number after `name` in a file of lines "name value"; 0 when it is not there.
std::int64_t entry(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

void offer(HostMemory& least, std::int64_t available, const std::string& limit) {
  if (available < least.available_bytes) least = {std::max<std::int64_t>(available, 0), limit};
}

/// One control group: its limit less what it uses; clean pages of files are given back when others
/// need them.
void offer_group(HostMemory& least, const fs::path& group, const char* limit, const char* usage,
                 const char* inactive) {
  const auto most = number_in(group / limit), used = number_in(group / usage);
  if (!most || !used) return;
  const std::int64_t clean = entry(group / "memory.stat", inactive);
  offer(least, *most - *used + clean, std::string(limit) + " of the cgroup");
}

/// Applies the limits of the process's cgroup and of all cgroups around it.
void offer_groups(HostMemory& least, const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "hierarchy:controllers:/path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers.find("memory") == std::string::npos) continue;
    const fs::path mount = root / (controllers.empty() ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path path = fs::path(line.substr(second + 1)).relative_path();
    for (;; path = path.parent_path()) {
      if (controllers.empty()) {
        offer_group(least, mount / path, "memory.max", "memory.current", "inactive_file");
      } else {
        offer_group(least, mount / path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                    "total_inactive_file");
      }
      if (path.empty()) break;
    }
  }
}

void offer_address_space(HostMemory& least, const fs::path& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto pages = number_in(root / "proc/self/statm");  // its first number: of address space
  if (!pages) return;
  const std::int64_t used = *pages * sysconf(_SC_PAGESIZE);
  offer(least, static_cast<std::int64_t>(limit.rlim_cur) - used, "RLIMIT_AS (ulimit -v)");
}

}  // namespace

HostMemory available_host_memory(const fs::path& root) {
  HostMemory least{kUnlimited, "none"};
  const fs::path meminfo = root / "proc/meminfo";
  constexpr std::int64_t kKibibyte = 1024;
  if (const std::int64_t free = entry(meminfo, "MemAvailable:"); free > 0) {
    const std::int64_t swap = entry(meminfo, "SwapFree:");
    offer(
        least, (free + swap) * kKibibyte,
        swap > 0 ? "MemAvailable and SwapFree of /proc/meminfo" : "MemAvailable of /proc/meminfo");
  }
  offer_groups(least, root);
  offer_address_space(least, root);
  return least;
}

}  // namespace trellis
