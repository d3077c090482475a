#include "base/files/run_lock.h"

#include <cerrno>
#include <functional>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RunLockTest : public testing::Test {
 protected:
  RunLockTest() { fs::create_directories(folder_); }
  ~RunLockTest() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string refusal() const {
    try {
      RunLock lock(folder_, "choose --out");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_ = fs::temp_directory_path() / ("trellis_run_lock_" + std::to_string(::getpid()));
};

/// Runs `body` in another process; `until`: what this process does while the other waits.
void with_process(const std::function<void()>& body,
                  const std::function<void(pid_t child)>& meanwhile) {
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready) + ::pipe(end), 0);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    ::close(end[1]);
    body();
    (void)!::write(ready[1], "r", 1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  meanwhile(child);
  for (const int descriptor : {ready[0], ready[1], end[0], end[1]}) ::close(descriptor);
  ::waitpid(child, nullptr, 0);
}

TEST_F(RunLockTest, AnotherProcessIsNamed) {
  with_process([&] { new RunLock(folder_, "choose --out"); },
               [&](pid_t child) {
                 EXPECT_THAT(refusal(),
                             AllOf(HasSubstr(folder_.string() +
                                             ": another process writes there now: process " +
                                             std::to_string(child) + " on host "),
                                   HasSubstr(program_invocation_short_name),
                                   HasSubstr("; wait for its end, or choose --out")));
               });
}

TEST_F(RunLockTest, EndsWithItsProcessHoweverThatEnds) {
  with_process([&] { new RunLock(folder_, "choose --out"); },
               [&](pid_t child) {
                 ::kill(child, SIGKILL);
                 ::waitpid(child, nullptr, 0);
                 EXPECT_TRUE(fs::exists(folder_ / RunLock::kFileName));
                 EXPECT_EQ(refusal(), "");
               });
}

TEST_F(RunLockTest, LeavesNoFile) {
  { const RunLock lock(folder_, ""); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(RunLockTest, MovesWithItsObject) {
  std::optional<RunLock> moved;
  {
    RunLock lock(folder_, "");
    moved.emplace(std::move(lock));
  }
  EXPECT_NE(refusal(), "");
  moved.reset();
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLockTest, AFileThatWentAwayIsNoLock) {
  std::optional<FileLock> first = FileLock::try_lock(folder_ / "lock");
  ASSERT_TRUE(first);
  EXPECT_FALSE(FileLock::try_lock(folder_ / "lock"));
  fs::rename(folder_ / "lock", folder_ / "moved");
  EXPECT_TRUE(FileLock::try_lock(folder_ / "lock"));
}

}  // namespace
}  // namespace trellis
