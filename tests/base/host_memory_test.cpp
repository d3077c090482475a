// The memory that a process may still allocate, from files as Linux writes them.
#include "base/process/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "tests/support/temporary_directory.h"

namespace trellis {
namespace {

using testing::HasSubstr;

/// A machine of 100 KiB free memory.
class Machine : public testing::Test {
 protected:
  Machine() {
    file(
        "proc/meminfo",
        "MemTotal:  400 kB\nMemFree:  50 kB\nMemAvailable:  100 kB\nSwapTotal:  0 kB\nSwapFree:  0 "
        "kB\n");
  }
  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((directory_.path() / path).parent_path());
    std::ofstream(directory_.path() / path) << text;
  }
  [[nodiscard]] HostMemory read() const { return available_host_memory(directory_.path()); }
  const TemporaryDirectory directory_;
};

TEST_F(Machine, FreeMemoryAndSwapAreAvailable) {
  EXPECT_EQ(read().available_bytes, 100 * 1024);
  EXPECT_EQ(read().limit, "MemAvailable of /proc/meminfo");
  file("proc/meminfo", "MemAvailable:  100 kB\nSwapFree:  20 kB\n");
  EXPECT_EQ(read().available_bytes, 120 * 1024);
}

TEST_F(Machine, EveryGroupAroundTheProcessLimitsIt) {
  file("proc/self/cgroup", "0::/slice/job\n");
  file("sys/fs/cgroup/slice/job/memory.max", "max\n");
  file("sys/fs/cgroup/slice/job/memory.current", "5000\n");
  EXPECT_EQ(read().available_bytes, 100 * 1024) << "no limit";
  file("sys/fs/cgroup/slice/memory.max", "50000\n");
  file("sys/fs/cgroup/slice/memory.current", "45000\n");
  EXPECT_EQ(read().available_bytes, 5000);
  file("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 3000\nfile 4000\n");
  EXPECT_EQ(read().available_bytes, 8000) << "clean pages of files are given back";
  EXPECT_EQ(read().limit, "memory.max of the cgroup");
}

TEST_F(Machine, GroupsOfVersion1LimitToo) {
  file("proc/self/cgroup", "4:cpu,cpuacct:/a\n3:memory:/job\n");
  file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "30000\n");
  file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "10000\n");
  EXPECT_EQ(read().available_bytes, 20000);
  file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "40000\n");
  EXPECT_EQ(read().available_bytes, 0) << "never below nothing";
}

TEST(HostMemory, AddressSpaceLimitsThisProcess) {
  EXPECT_GT(available_host_memory().available_bytes, 0);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit kept = limit;
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  constexpr rlim_t kLeft = 64 << 20;
  limit.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kLeft;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const HostMemory within = available_host_memory();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &kept), 0);
  EXPECT_LE(within.available_bytes, static_cast<std::int64_t>(kLeft));
  EXPECT_EQ(within.limit, "RLIMIT_AS (ulimit -v)");
}

}  // namespace
}  // namespace trellis
