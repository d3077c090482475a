#include "base/files/atomic_file.h"

#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest()
      : directory_(fs::temp_directory_path() / ("trellis_atomic_" + std::to_string(::getpid()))) {
    fs::create_directories(directory_);
  }
  ~AtomicFileTest() override { fs::remove_all(directory_); }

  static std::string content(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  fs::path directory_;
};

TEST_F(AtomicFileTest, AppearsOnlyOnCommit) {
  const fs::path path = directory_ / "a.txt";
  {
    AtomicFile file(path);
    file.stream() << "hello";
    EXPECT_FALSE(fs::exists(path));
    EXPECT_TRUE(fs::exists(directory_ / "a.txt.partial"));
    file.commit();
    EXPECT_EQ(content(path), "hello");
  }
  EXPECT_EQ(content(path), "hello");
  EXPECT_FALSE(fs::exists(directory_ / "a.txt.partial"));
}

TEST_F(AtomicFileTest, WithoutCommitTheOldContentStaysAndThePartialGoes) {
  const fs::path path = directory_ / "a.txt";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.stream() << "new";
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_FALSE(fs::exists(directory_ / "a.txt.partial"));
}

TEST_F(AtomicFileTest, WritesBytesAsTheyAre) {
  const std::string bytes("a\0b\r\n\xff", 6);
  write_file_atomically(directory_ / "b.bin", bytes);
  EXPECT_EQ(content(directory_ / "b.bin"), bytes);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(AtomicFileTest, MissingFoldersAreCreatedAndStayOnlyWithTheFile) {
  const fs::path path = directory_ / "missing" / "deep" / "a.txt";
  { const AtomicFile tried(path); }
  EXPECT_FALSE(fs::exists(directory_ / "missing"));
  write_file_atomically(path, "x");
  EXPECT_EQ(content(path), "x");
}

TEST_F(AtomicFileTest, APlaceThatCannotBeWrittenIsTheUsersMistake) {
  write_file_atomically(directory_ / "file", "x");
  const fs::path below = directory_ / "file" / "a.txt";
  EXPECT_THROW(AtomicFile{below}, ConfigError);
  EXPECT_THAT(error_of([&] { AtomicFile file(below); }),
              testing::StartsWith(below.string() + ": cannot write here: "));
  EXPECT_EQ(error_of([&] { AtomicFile file(directory_); }),
            directory_.string() + ": cannot write here: Is a directory; choose another place");
}

TEST_F(AtomicFileTest, ARenameThatFailsIsReportedAndCleanedUp) {
  const fs::path path = directory_ / "taken";
  {
    AtomicFile file(path);
    file.stream() << "x";
    fs::create_directories(path / "inside");
    EXPECT_EQ(error_of([&] { file.commit(); }),
              path.string() + ": write failed: Is a directory; choose another place");
  }
  EXPECT_FALSE(fs::exists(directory_ / "taken.partial"));
}

TEST_F(AtomicFileTest, ALimitOfTheFileSizeIsReportedAsWhatItIs) {
  const fs::path path = directory_ / "large";
  write_file_atomically(path, "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = 100'000;
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_EQ(error_of([&] { write_file_atomically(path, std::string(1'000'000, 'x')); }),
            path.string() + ": write failed: File too large; choose another place");
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
}

// By a separate link: a writer that renames over its name would replace the device of this host.
TEST_F(AtomicFileTest, AFullDeviceIsReportedAsFullAndStaysADevice) {
  const fs::path path = directory_ / "full";
  fs::create_symlink("/dev/full", path);
  for (const std::size_t size : {1, 1'000'000}) {  // seen when the rest is flushed, or at once
    const std::string said = error_of([&] { write_file_atomically(path, std::string(size, 'x')); });
    EXPECT_EQ(said,
              "/dev/full: write failed: No space left on device; free some space or choose another "
              "place");
  }
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_TRUE(fs::is_character_file(path));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
}

TEST_F(AtomicFileTest, ASymbolicLinkStaysOne) {
  write_file_atomically(directory_ / "target", "old");
  fs::create_symlink(directory_ / "target", directory_ / "link");
  write_file_atomically(directory_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
  EXPECT_EQ(content(directory_ / "target"), "new");
}

TEST_F(AtomicFileTest, WritersOfOneNameDoNotMix) {
  const fs::path path = directory_ / "a.txt";
  AtomicFile first(path), second(path);
  first.stream() << std::string(100'000, '1');
  second.stream() << "2";
  second.commit();
  EXPECT_EQ(content(path), "2");
  first.commit();
  EXPECT_EQ(content(path), std::string(100'000, '1'));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1);
}

TEST_F(AtomicFileTest, WhatAKilledWriterLeftIsOverwritten) {
  std::ofstream(directory_ / "a.txt.partial") << "a long rest of another writer";
  write_file_atomically(directory_ / "a.txt", "new");
  EXPECT_EQ(content(directory_ / "a.txt"), "new");
  EXPECT_FALSE(fs::exists(directory_ / "a.txt.partial"));
}

TEST_F(AtomicFileTest, ASignalThatEndsTheProcessLeavesNoPartialFile) {
  write_file_atomically(directory_ / "b.txt", "of before");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const RemovesPartialFiles on_signals;
      AtomicFile first(directory_ / "a.txt"), second(directory_ / "b.txt");
      write_file_atomically(directory_ / "c.txt", "complete");
      first.stream() << "begun" << std::flush;
      ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_FALSE(fs::exists(directory_ / "a.txt.partial"));
    EXPECT_FALSE(fs::exists(directory_ / "b.txt.partial"));
    EXPECT_EQ(content(directory_ / "b.txt"), "of before");
    EXPECT_EQ(content(directory_ / "c.txt"), "complete");
  }
}

TEST_F(AtomicFileTest, AnIgnoredSignalStaysIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const RemovesPartialFiles on_signals;
    AtomicFile file(directory_ / "a.txt");
    ::raise(SIGHUP);
    file.commit();
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

}  // namespace
}  // namespace trellis
