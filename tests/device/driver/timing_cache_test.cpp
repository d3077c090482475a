#include "device/driver/timing/timing_cache.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include <unistd.h>

#include <gtest/gtest.h>

#include "device/driver/timing/program_timer.h"
#include "sim/config/load_system.h"
#include "tests/device/driver/layered_graph.h"

/// Timings on disk: what they say is what a fresh timing would say, and a damaged one is never
/// believed.
namespace trellis::device {
namespace {

namespace fs = std::filesystem;
using testing::layered_graph;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class TimingCacheTest : public ::testing::Test {
 protected:
  TimingCacheTest() { fs::remove_all(directory); }
  ~TimingCacheTest() override { fs::remove_all(directory); }

  /// A new process's view of the graph.
  std::vector<TimedPiece> timed(std::optional<fs::path> cache, int layers = 3) {
    ProgramTimer timer(system, 1, std::move(cache));
    std::vector<TimedPiece> pieces;
    for (const TimedProgram::Step& step : timer.time(layered_graph(layers)).steps) {
      if (step.piece != nullptr) pieces.push_back(*step.piece);
    }
    return pieces;
  }

  static std::vector<std::string> bytes(const std::vector<TimedPiece>& pieces) {
    std::vector<std::string> all;
    for (const TimedPiece& piece : pieces) all.push_back(encode(piece));
    return all;
  }

  std::map<fs::path, std::string> files() {
    std::map<fs::path, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) all.emplace(entry.path(), read(entry.path()));
    }
    return all;
  }

  /// By the names of the files.
  std::vector<ContentHash> pieces() {
    std::vector<ContentHash> all;
    for (const auto& [path, content] : files()) {
      const std::string name = path.filename();
      all.push_back({std::stoull(name.substr(0, 16), nullptr, 16),
                     std::stoull(name.substr(16), nullptr, 16)});
    }
    return all;
  }

  sim::SystemConfig system = sim::load_system("trn2.48xlarge");
  fs::path directory =
      fs::temp_directory_path() / ("trellis_timing_cache_test_" + std::to_string(::getpid()));
};

TEST_F(TimingCacheTest, WarmIsCold) {
  const auto without = bytes(timed(std::nullopt)), cold = bytes(timed(directory)),
             warm = bytes(timed(directory));
  EXPECT_EQ(cold, without);
  EXPECT_EQ(warm, without);
  EXPECT_EQ(files().size(), 3u) << "one file for each distinct piece, nothing partial";
}

TEST_F(TimingCacheTest, AKnownPieceIsNotTimedAgain) {
  (void)timed(directory);
  TimingCache cache(directory, system);
  for (const ContentHash& piece : pieces()) {
    TimedPiece other = cache.load(piece).value();
    other.instructions += 1000;
    cache.store(piece, other);
  }
  for (const TimedPiece& piece : timed(directory)) EXPECT_GT(piece.instructions, 1000);
}

TEST_F(TimingCacheTest, AnotherMachineHasOtherTimings) {
  (void)timed(directory);
  const std::size_t before = files().size();
  sim::LoadOptions load;
  load.overrides = {"core.dma.fixed_latency=1 us"};
  system = sim::load_system("trn2.48xlarge", load);
  const auto slower = bytes(timed(directory));
  EXPECT_EQ(files().size(), 2 * before);
  EXPECT_EQ(slower, bytes(timed(std::nullopt)));
}

TEST_F(TimingCacheTest, ADamagedFileIsIgnoredAndWrittenAgain) {
  const auto cold = bytes(timed(directory));
  const auto whole = files();
  for (const std::size_t keep : {0u, 5u, 40u, 300u}) {
    for (const auto& [path, content] : whole) write(path, content.substr(0, keep));
    EXPECT_EQ(bytes(timed(directory)), cold);
    EXPECT_EQ(files(), whole);
  }
}

TEST_F(TimingCacheTest, SwappedFilesAreMisses) {
  const auto cold = bytes(timed(directory));
  const auto whole = files();
  ASSERT_EQ(whole.size(), 3u);
  for (const auto& [from, content] : whole) {
    for (const auto& [to, own] : whole) {
      write(to, content);
      EXPECT_EQ(bytes(timed(directory)), cold) << from << " over " << to;
      EXPECT_EQ(files(), whole);
    }
  }
}

TEST_F(TimingCacheTest, FilesOfAnotherMachineAreMisses) {
  (void)timed(directory);
  const auto of_fast = files();
  fs::remove_all(directory);
  sim::LoadOptions load;
  load.overrides = {"core.dma.fixed_latency=1 us"};
  system = sim::load_system("trn2.48xlarge", load);
  const auto slow = bytes(timed(directory));
  for (const auto& [path, content] : files()) {
    for (const auto& [other, fast] : of_fast) {
      if (other.filename() == path.filename()) write(path, fast);
    }
  }
  EXPECT_EQ(bytes(timed(directory)), slow);
}

TEST_F(TimingCacheTest, AFolderInPlaceOfAFileCostsOnlyTime) {
  const auto cold = bytes(timed(directory));
  for (const auto& [path, content] : files()) {
    fs::remove(path);
    fs::create_directories(path / "inside");
  }
  EXPECT_EQ(bytes(timed(directory)), cold);
}

TEST_F(TimingCacheTest, DecodingNeverLeavesTheBytesNorThePiece) {
  const std::string whole = encode(timed(std::nullopt).front());
  ASSERT_TRUE(decode(whole));
  EXPECT_EQ(encode(*decode(whole)), whole);
  EXPECT_FALSE(decode(whole + "x"));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_FALSE(decode(std::string_view(whole).substr(0, i))) << i;
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0xff);
    const std::optional<TimedPiece> other = decode(changed);
    if (!other) continue;
    for (const sim::KernelSlice& slice : other->segment().slices)
      EXPECT_LT(slice.kernel, other->kernels.size()) << i;
  }
}

TEST_F(TimingCacheTest, APlaceThatCannotBeWrittenCostsOnlyTime) {
  write(directory, "a file, no directory");
  EXPECT_EQ(bytes(timed(directory)), bytes(timed(std::nullopt)));
}

TEST(CacheDirectoryTest, FollowsTheEnvironment) {
  setenv("HOME", "/someone", 1);
  setenv("XDG_CACHE_HOME", "/caches", 1);
  setenv("TRELLIS_CACHE", "off", 1);
  EXPECT_EQ(cache_directory(), std::nullopt);
  setenv("TRELLIS_CACHE", "/elsewhere", 1);
  EXPECT_EQ(cache_directory(), fs::path("/elsewhere"));
  unsetenv("TRELLIS_CACHE");
  EXPECT_EQ(cache_directory(), fs::path("/caches/trellis"));
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(cache_directory(), fs::path("/someone/.cache/trellis"));
  unsetenv("HOME");
  EXPECT_EQ(cache_directory(), std::nullopt);
}

TEST(BuildIdTest, IsTheLinkersOfThisBinary) {
  const std::string id = build_id();
  EXPECT_GE(id.size(), 16u);
  EXPECT_EQ(id, build_id());
}

}  // namespace
}  // namespace trellis::device
