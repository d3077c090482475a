#include "traces/metrics_writer.h"

#include <fstream>
#include <iterator>
#include <limits>

#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis::traces {
namespace {

class MetricsWriterTest : public testing::Test {
 protected:
  MetricsWriterTest()
      : path_(std::filesystem::temp_directory_path() /
              ("trellis_metrics_" + std::to_string(::getpid()) + ".jsonl")) {}
  ~MetricsWriterTest() override { std::filesystem::remove(path_); }
  [[nodiscard]] std::string content() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::filesystem::path path_;
};

TEST_F(MetricsWriterTest, EveryLineIsOnDiskWhenWriteReturns) {
  MetricsWriter writer(path_);
  writer.write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(content(), "{\"loss\":2.5,\"step\":1}\n");
  writer.write({{"step", 2}, {"text", "a\nb"}});
  EXPECT_EQ(content(), "{\"loss\":2.5,\"step\":1}\n{\"step\":2,\"text\":\"a\\nb\"}\n");
}

TEST_F(MetricsWriterTest, AlwaysValidJson) {
  MetricsWriter writer(path_);
  writer.write({{"loss", std::numeric_limits<double>::quiet_NaN()}, {"bad", "\xff"}});
  EXPECT_EQ(content(), "{\"bad\":\"\xef\xbf\xbd\",\"loss\":null}\n");
  EXPECT_THROW(writer.write(nlohmann::json::array({1})), Error);
}

TEST_F(MetricsWriterTest, ResumeContinuesAndRemovesATornLine) {
  std::ofstream(path_) << "{\"step\":1}\n{\"step\":2,\"lo";
  MetricsWriter(path_).write({{"step", 2}});
  EXPECT_EQ(content(), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsWriterTest, MissingDirectoryIsTheUsersMistake) {
  try {
    MetricsWriter writer(path_ / "missing" / "metrics.jsonl");
    FAIL() << "expected an exception";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(),
              (path_ / "missing" / "metrics.jsonl").string() +
                  ": cannot write here: No such file or directory; choose another place");
  }
}

}  // namespace
}  // namespace trellis::traces
