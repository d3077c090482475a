#include "base/files/input_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/yaml/yaml.h"
#include "tests/support/temporary_directory.h"

namespace trellis {
namespace {

using testing::HasSubstr;

std::string error_of(const std::filesystem::path& path, std::int64_t most = kMostInputBytes) {
  try {
    (void)read_input_file(path, most);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(InputFile, ReadsRegularFiles) {
  const TemporaryDirectory directory;
  const std::string text = std::string("a\0b\n", 4) + std::string(200'000, 'x');
  EXPECT_EQ(read_input_file(directory.write("file", text)), text);
  EXPECT_EQ(read_input_file(directory.write("empty", "")), "");
  EXPECT_THAT(read_input_file("/proc/self/status"), HasSubstr("Name:"));  // of size 0, as stat says
}

TEST(InputFile, SaysWhatIsNoRegularFile) {
  const TemporaryDirectory directory;
  const std::string pipe = (directory.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of(pipe), pipe + ": cannot read: it is a named pipe; expected a regular file");
  EXPECT_THAT(error_of("/dev/zero"), HasSubstr("it is a device; expected a regular file"));
  EXPECT_THAT(error_of("/dev/null"), HasSubstr("it is a device"));
  EXPECT_THAT(error_of(directory.path()), HasSubstr("it is a directory"));
  EXPECT_THAT(error_of(directory.path() / "none"), HasSubstr("there is no such file"));
  EXPECT_THAT(error_of(std::string(5000, 'x')), HasSubstr("File name too long"));
  EXPECT_THROW((void)YamlDocument::load(pipe), ConfigError);
}

TEST(InputFile, ALinkIsWhatItLeadsTo) {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/dev/zero", directory.path() / "device");
  std::filesystem::create_symlink(directory.write("file", "text"), directory.path() / "link");
  EXPECT_THAT(error_of(directory.path() / "device"), HasSubstr("it is a device"));
  EXPECT_EQ(read_input_file(directory.path() / "link"), "text");
}

TEST(InputFile, HugeFilesAreNotRead) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("file", "x");
  std::filesystem::resize_file(file, std::uintmax_t{1} << 40);  // a hole: no disk is needed
  EXPECT_THAT(error_of(file), HasSubstr("is it the wrong file?"));
  EXPECT_THAT(error_of("/proc/self/status", 10), HasSubstr("it has more than 10 bytes"));
  EXPECT_THROW((void)YamlDocument::load(directory.write("long.yaml", std::string(2 << 20, '#'))),
               ConfigError);
}

}  // namespace
}  // namespace trellis
