#include "traces/tensorboard_writer.h"

#include <fstream>
#include <iterator>

#include <unistd.h>

#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::traces {
namespace {

// The meaning of the records is tested with TensorBoard's own loader in read_by_tensorboard.py.
TEST(TensorBoardWriter, RecordsAreWholeAfterEveryCall) {
  const auto path =
      std::filesystem::temp_directory_path() / ("trellis_tfevents_" + std::to_string(::getpid()));
  const auto bytes = [&] {
    std::ifstream stream(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  TensorBoardWriter writer(path, 1.0);
  std::size_t size = bytes().size();
  for (int step = 0; step < 3; ++step) {
    writer.scalar("loss", step, 0.5, 2.0);
    const std::string content = bytes();
    ASSERT_GT(content.size(), size + 16);
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i)
      length =
          length << 8 | static_cast<unsigned char>(content[size + static_cast<std::size_t>(i)]);
    EXPECT_EQ(content.size(), size + 16 + length) << "length, its CRC, the event, its CRC";
    size = content.size();
  }
  std::filesystem::remove(path);
}

TEST(TensorBoardWriter, MissingDirectoryIsTheUsersMistake) {
  EXPECT_THROW(TensorBoardWriter(
                   std::filesystem::temp_directory_path() / "trellis_missing_directory" / "x", 0),
               ConfigError);
}

}  // namespace
}  // namespace trellis::traces
