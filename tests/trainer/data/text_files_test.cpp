#include "trainer/files/data/text_files.h"

#include <unistd.h>

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::trainer::text_files_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::filesystem::path& path) {
  try {
    (void)read_text_files(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(IsText, AcceptsUtf8AndRejectsTheRest) {
  for (const char* text : {"", "plain", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x8C\xBF",
                           "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_text(text)) << text;
  const char* bad[] = {
      "\x80",     "\xC3",         "\xC0\xAF",         "\xC1\xBF",         "\xE0\x9F\xBF",
      "\xE2\x82", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
      "\xFF"};
  for (const char* bytes : bad) EXPECT_FALSE(is_text(bytes)) << testing::PrintToString(bytes);
  EXPECT_FALSE(is_text(std::string_view("a\0b", 3)));
}

TEST(IsText, LooksAtEveryPlaceOfALongText) {
  for (std::size_t place = 0; place < 24; ++place) {
    const std::string before(place, '\x7F'), after(24 - place, '\x01');
    EXPECT_TRUE(is_text(before + "\xC3\xA9" + after)) << place;
    EXPECT_FALSE(is_text(before + "\x80" + after)) << place;
    EXPECT_FALSE(is_text(before + std::string(1, '\0') + after)) << place;
  }
}

TEST(ReadTextFiles, ReadsADirectorySortedByPathAndCountsWhatItSkips) {
  const TemporaryDirectory directory;
  directory.write("data/b.txt", "second");
  directory.write("data/a/z.txt", "first");
  directory.write("data/c.bin", std::string_view("\0\1", 2));
  directory.write("data/d.txt", "");
  directory.write("data/.hidden", "no");
  directory.write("data/.git/config", "no");
  const TextFiles files = read_text_files(directory.path() / "data");
  EXPECT_THAT(files.documents, ElementsAre("first", "second"));
  EXPECT_EQ(files.num_skipped, 2);
  EXPECT_EQ(files.first_skipped, (directory.path() / "data/c.bin").string());
}

TEST(ReadTextFiles, DoesNotFollowLinkedDirectories) {
  const TemporaryDirectory directory;
  directory.write("data/a.txt", "a");
  std::filesystem::create_directory_symlink(directory.path() / "data",
                                            directory.path() / "data/loop");
  std::filesystem::create_symlink("nowhere", directory.path() / "data/dangling");
  EXPECT_THAT(read_text_files(directory.path() / "data").documents, ElementsAre("a"));
}

TEST(ReadTextFiles, TakesASingleFileAsItIs) {
  const TemporaryDirectory directory;
  const std::string bytes("\xFF\0x", 3);
  EXPECT_THAT(read_text_files(directory.write("any.bin", bytes)).documents, ElementsAre(bytes));
}

TEST(ReadTextFiles, NamesWhatCannotBeRead) {
  const TemporaryDirectory directory;
  const std::string prefix = "data.train_dir: ";
  const auto missing = directory.path() / "missing";
  EXPECT_EQ(error_of(missing),
            prefix + missing.string() + ": cannot read: there is no such file or directory");
  const std::string empty = directory.write("empty.txt", "");
  EXPECT_EQ(error_of(empty), prefix + empty + ": cannot read: it holds no text");
  directory.write("binary/x.bin", "\xFF");
  const std::string binary = (directory.path() / "binary").string();
  EXPECT_EQ(error_of(binary), prefix + binary +
                                  ": cannot read: it holds no text (1 files skipped, such as " +
                                  binary + "/x.bin)");
}

/// The folder of tests' files may be closed to other users too: the error is the same.
TEST(ReadTextFiles, NamesAFileWithoutPermission) {
  const TemporaryDirectory directory;
  const std::string secret = directory.write("secret.txt", "x");
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  const uid_t user = geteuid();  // root may read everything: read as an unprivileged user
  constexpr uid_t kUnprivileged = 65534;
  if (user == 0) {
    std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
    ASSERT_EQ(seteuid(kUnprivileged), 0);
  }
  const std::string text = error_of(secret);
  if (user == 0) {
    ASSERT_EQ(seteuid(user), 0);
  }
  EXPECT_THAT(text, HasSubstr(secret + ": cannot read: Permission denied"));
}

/// <root>/bin/python3 → python3.11, <root>/lib/python3.9 and python3.11: the newest library counts;
/// a virtual environment leads to its base.
class PythonLibrary : public testing::Test {
 protected:
  PythonLibrary() {
    directory_.write("usr/bin/python3.11", "#!");
    std::filesystem::create_symlink("python3.11", directory_.path() / "usr/bin/python3");
    directory_.write("usr/lib/python3.9/os.py", "old");
    directory_.write("usr/lib/python3.11/os.py", "import abc");
    directory_.write("usr/lib/python3.11/json/decoder.py", "def decode");
    directory_.write("usr/lib/python3.11/LICENSE.txt", "no source");
    directory_.write("usr/lib/python3/dist-packages/x.py", "another package");
  }
  [[nodiscard]] std::string bin(const std::string& root) const {
    return (directory_.path() / root / "bin").string();
  }
  TemporaryDirectory directory_;
};

TEST_F(PythonLibrary, IsFoundNextToTheExecutable) {
  const TextFiles files = read_python_library("/no/such/place:" + bin("usr"));
  EXPECT_THAT(files.documents, ElementsAre("def decode", "import abc"));
  EXPECT_EQ(files.source, "the Python standard library's sources in " +
                              (directory_.path() / "usr/lib/python3.11").string());
}

TEST_F(PythonLibrary, IsFoundFromAVirtualEnvironment) {
  std::filesystem::create_directories(directory_.path() / "venv/bin");
  std::filesystem::create_directories(directory_.path() / "venv/lib/python3.11/site-packages");
  std::filesystem::create_symlink(directory_.path() / "usr/bin/python3",
                                  directory_.path() / "venv/bin/python3");
  EXPECT_THAT(read_python_library(bin("venv")).documents, ElementsAre("def decode", "import abc"));
}

TEST_F(PythonLibrary, WithoutPythonTheErrorSaysWhatToDo) {
  try {
    (void)read_python_library("/no/such/place");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("set data.train_dir to a text file or to a directory of text files"));
  }
}

}  // namespace
}  // namespace trellis::trainer::text_files_test
