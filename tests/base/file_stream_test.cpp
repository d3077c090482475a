#include "base/files/file_stream.h"

#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/output_error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

class FileStreamTest : public testing::Test {
 protected:
  ~FileStreamTest() override { fs::remove(path_); }
  [[nodiscard]] std::string content() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  fs::path path_ =
      fs::temp_directory_path() / ("trellis_file_stream_" + std::to_string(::getpid()));
};

TEST_F(FileStreamTest, WritesEverySizeInOrder) {
  std::string expected;
  {
    FileStream out(path_, FileStream::Mode::kReplace);
    for (const std::size_t size : {0, 1, 7, 65'535, 65'536, 65'537, 3, 200'000, 1}) {
      const std::string text(size, static_cast<char>('a' + expected.size() % 26));
      out << text << '|';
      expected += text + '|';
    }
    out.check();
    EXPECT_EQ(content(), expected);
    out << "the rest";
  }
  EXPECT_EQ(content(), expected + "the rest");
}

TEST_F(FileStreamTest, WritesFromEveryAddress) {
  std::string text(300'000, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i % 251);
  std::string expected;
  FileStream out(path_, FileStream::Mode::kReplace);
  for (const std::size_t begin : {0, 1, 7, 8, 15, 16, 33}) {
    const std::string_view part = std::string_view(text).substr(begin, 200'000 + begin);
    out << "|" << part;
    expected += "|" + std::string(part);
  }
  out.check();
  EXPECT_EQ(content(), expected);
}

TEST_F(FileStreamTest, ReplacesOrAppends) {
  for (int i = 0; i < 2; ++i) FileStream(path_, FileStream::Mode::kReplace) << "a";
  FileStream(path_, FileStream::Mode::kAppend) << "b";
  EXPECT_EQ(content(), "ab");
}

TEST_F(FileStreamTest, TheFirstReasonStays) {
  FileStream out("/dev/full", FileStream::Mode::kAppend);
  out << "x" << std::flush;
  EXPECT_FALSE(out);
  try {
    out.check();
    FAIL() << "expected an OutputError";
  } catch (const OutputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "/dev/full: write failed: No space left on device; free some space or choose another "
              "place");
    EXPECT_EQ(static_cast<int>(error.code()), 7);
  }
}

TEST_F(FileStreamTest, AFolderIsNoFile) {
  EXPECT_THROW(FileStream(fs::temp_directory_path(), FileStream::Mode::kAppend), ConfigError);
}

TEST(DescriptorBufferTest, NothingFollowsAFailure) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  const int capacity = ::fcntl(ends[1], F_GETPIPE_SZ);
  DescriptorBuffer out(ends[1]);
  out.sputn(std::string(static_cast<std::size_t>(2 * capacity), 'x').data(), 2 * capacity);
  EXPECT_EQ(out.error(), EAGAIN);
  std::string first(static_cast<std::size_t>(capacity), '\0');
  EXPECT_EQ(::read(ends[0], first.data(), first.size()), capacity);
  out.sputn("later", 5);
  EXPECT_EQ(out.flush(), EAGAIN);
  EXPECT_LT(::read(ends[0], first.data(), first.size()), 0)
      << "a gap in the output would go unseen";
  for (const int end : ends) ::close(end);
}

}  // namespace
}  // namespace trellis
