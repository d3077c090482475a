#include "base/atomic_file.h"

#include <iterator>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() : directory_(fs::temp_directory_path() / ("trellis_atomic_" + std::to_string(::getpid()))) {
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

TEST_F(AtomicFileTest, MissingDirectoryIsTheUsersMistake) {
  const fs::path path = directory_ / "missing" / "a.txt";
  try {
    AtomicFile file(path);
    FAIL() << "expected an exception";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() + ": cannot write here: No such file or directory; create the directory or choose another place");
  }
}

TEST_F(AtomicFileTest, ARenameThatFailsIsReportedAndCleanedUp) {
  const fs::path path = directory_ / "taken";
  fs::create_directories(path / "inside");
  {
    AtomicFile file(path);
    file.stream() << "x";
    try {
      file.commit();
      FAIL() << "expected an exception";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(path.string() + ": write failed: "));
    }
  }
  EXPECT_FALSE(fs::exists(directory_ / "taken.partial"));
}

}  // namespace
}  // namespace trellis
