#include "analysis/kept_runs/kept_runs.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_codec.h"
#include "base/files/cache_file.h"
#include "sim/config/number_files.h"
#include "sim/config/system_config.h"

/// Kept runs never touch a file that they did not make, and never answer with a file that is not
/// the run's.
namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;

class KeptRunsTest : public testing::Test {
 protected:
  KeptRunsTest() {
    fs::create_directories(run_);
    write(run_ / "report.json", "{\"step_time_ps\": 1}\n");
    write(run_ / "trace.txt", std::string("a\0b", 3));
    write(run_ / "hparams.yaml", "of the call");
    write(run_ / "cmd-args.log", "of the call");
    fs::create_directories(run_ / "run_0");
  }
  ~KeptRunsTest() override { fs::remove_all(folder_); }

  static void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  static std::string read(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  [[nodiscard]] fs::path file_of(const ContentHash& key) const {
    return kept_ / (key.to_string() + ".run");
  }

  [[nodiscard]] std::optional<RunFiles> found(const ContentHash& key) const {
    const std::optional<KeptRun> run = runs_.find(key);
    if (!run) return std::nullopt;
    return RunFiles(run->files().begin(), run->files().end());
  }

  fs::path folder_ =
      fs::temp_directory_path() / ("trellis_kept_runs_" + std::to_string(::getpid()));
  fs::path cache_ = folder_ / "cache", kept_ = cache_ / "trellis_kept_runs", run_ = folder_ / "run";
  KeptRuns runs_{cache_};
  RunFiles files_{{"report.json", "{\"step_time_ps\": 1}\n"},
                  {"trace.txt", std::string("a\0b", 3)}};
};

TEST_F(KeptRunsTest, GivesTheFilesOfTheRunAgain) {
  EXPECT_EQ(found({1, 1}), std::nullopt);
  runs_.store({1, 1}, run_);
  EXPECT_EQ(found({1, 1}), files_);
  EXPECT_EQ(found({1, 2}), std::nullopt);
  EXPECT_FALSE(KeptRuns(std::nullopt).find({1, 1}));
}

TEST_F(KeptRunsTest, OnlyItsOwnFilesAreDeleted) {
  std::vector<fs::path> of_user;
  for (const fs::path& place : {cache_ / "runs", kept_}) {
    for (int i = 0; i < 70; ++i) {
      fs::create_directories(place / ("user" + std::to_string(i)));
      write(place / ("user" + std::to_string(i)) / "notes.txt", "of the user");
      of_user.push_back(place / ("user" + std::to_string(i)) / "notes.txt");
      of_user.push_back(place / (ContentHash{9, static_cast<std::uint64_t>(i)}.to_string() +
                                 ".run"));  // the name of an entry, another content
      write(of_user.back(), "of the user");
    }
    fs::create_directories(place / (ContentHash{8, 8}.to_string() + ".run"));
  }
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1000);
  for (std::uint64_t i = 0; i < 70; ++i) {
    runs_.store({1, i}, run_);
    fs::last_write_time(file_of({1, i}), long_ago + std::chrono::seconds(i));
  }
  runs_.store({1, 70}, run_);
  for (const fs::path& file : of_user) EXPECT_EQ(read(file), "of the user") << file;
  EXPECT_TRUE(fs::is_directory(kept_ / (ContentHash{8, 8}.to_string() + ".run")));
  for (std::uint64_t i = 0; i <= 70; ++i) EXPECT_EQ(fs::exists(file_of({1, i})), i >= 7) << i;
}

TEST_F(KeptRunsTest, ChangedFilesAreMisses) {
  runs_.store({1, 1}, run_);
  write(run_ / "report.json", "{\"step_time_ps\": 2}\n");
  runs_.store({1, 2}, run_);
  const std::string whole = read(file_of({1, 1})), other = read(file_of({1, 2}));
  const auto expect_miss = [&](const std::string& bytes, const std::string& what) {
    write(file_of({1, 1}), bytes);
    EXPECT_EQ(found({1, 1}), std::nullopt) << what;
  };
  expect_miss(other, "another run");
  expect_miss("{\"files\":{}}", "foreign");
  expect_miss("", "empty");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    expect_miss(whole.substr(0, i), "cut off");
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    expect_miss(changed, "changed");
  }
  fs::remove(file_of({1, 1}));
  fs::create_directories(file_of({1, 1}));
  EXPECT_EQ(found({1, 1}), std::nullopt);
  runs_.store({1, 1}, run_);  // a warning, since the folder is not ours
  EXPECT_TRUE(fs::is_directory(file_of({1, 1})));
}

TEST_F(KeptRunsTest, ANameThatLeavesTheFolderIsNoRun) {
  for (const std::string& name :
       {std::string("../../x"), std::string(".."), std::string("."), std::string(""),
        std::string("/x"), std::string("a/b"), std::string("x\0y", 3)}) {
    RunFiles files = files_;
    files[name] = "y";
    EXPECT_EQ(decode(encode(files)), std::nullopt) << name;
    EXPECT_EQ(decode(encode(files_, {{name, {}}})), std::nullopt) << name;
    write_cache_file(file_of({1, 1}), "trellis.kept_run/3", {1, 1}, encode(files));
    EXPECT_EQ(found({1, 1}), std::nullopt) << name;
  }
}

TEST_F(KeptRunsTest, DecodingTakesOnlyWholeRuns) {
  const LargeFiles large{{"trace.pftrace", {5, 7, {1, 2}}}};
  const std::string whole = encode(files_, large);
  EXPECT_EQ(decode(whole), (DecodedRun{RunFileViews(files_.begin(), files_.end()), large}));
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(decode(std::string_view(whole).substr(0, i)), std::nullopt) << i;
  EXPECT_EQ(decode(whole + "x"), std::nullopt);
  EXPECT_EQ(decode(encode({{"trace.txt", "x"}})), std::nullopt) << "without a report";
  ByteWriter twice;
  twice(std::uint64_t{2});
  for (int i = 0; i < 2; ++i) twice("report.json"), twice("{}");
  twice(std::uint64_t{0});
  EXPECT_EQ(decode(twice.bytes()), std::nullopt);
  ByteWriter many;
  many(~std::uint64_t{0});
  EXPECT_EQ(decode(many.bytes()), std::nullopt);
}

TEST_F(KeptRunsTest, ARunWhoseTraceIsAFolderIsNotKept) {
  fs::create_directory(run_ / "run_0");  // outputs of an earlier run
  runs_.store({1, 1}, run_);
  EXPECT_TRUE(found({1, 1}));
  fs::create_directory(run_ / "trace.kineto");
  runs_.store({1, 2}, run_);
  EXPECT_FALSE(found({1, 2}));
}

TEST_F(KeptRunsTest, ALargeTraceIsSharedAndCheckedAllTheSame) {
  const std::string trace(kLargeBytes, 'x');
  const fs::path user = run_ / "trace.txt",
                 kept = kept_ / (ContentHash{1, 1}.to_string() + ".trace.txt");
  const auto store = [&] {
    fs::remove(user);
    write(user, trace);
    runs_.store({1, 1}, run_);
  };
  store();
  const std::optional<KeptRun> run = runs_.find({1, 1});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->files().size(), 1U);
  EXPECT_LT(fs::file_size(file_of({1, 1})), 1000U);
  for (const char* place : {"one", "two", "one"}) {  // also where it is already
    fs::create_directories(folder_ / place);
    run->write_to(folder_ / place);
    EXPECT_EQ(read(folder_ / place / "trace.txt"), trace);
    EXPECT_EQ(read(folder_ / place / "report.json"), files_["report.json"]);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / place), {}), 2);
  }
  fs::last_write_time(kept, fs::last_write_time(kept) + std::chrono::hours(1));
  EXPECT_TRUE(runs_.find({1, 1})) << "copied with the cache: its bytes are the same";
  std::fstream(kept, std::ios::in | std::ios::out) << "y";
  EXPECT_FALSE(runs_.find({1, 1})) << "changed";
  store();
  EXPECT_TRUE(runs_.find({1, 1}));
  std::ofstream(user, std::ios::app) << "y";
  if (fs::hard_link_count(user) > 1) {
    EXPECT_FALSE(runs_.find({1, 1})) << "changed through another name";
  }
  store();
  fs::resize_file(kept, kLargeBytes - 1);
  EXPECT_FALSE(runs_.find({1, 1})) << "cut off";
  fs::remove(kept);
  EXPECT_FALSE(runs_.find({1, 1})) << "missing";
  fs::create_directory(kept);
  EXPECT_FALSE(runs_.find({1, 1})) << "a folder";
}

TEST_F(KeptRunsTest, LargeTracesGoWithTheirRuns) {
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1000);
  const auto trace_of = [&](std::uint64_t i) {
    return kept_ / (ContentHash{1, i}.to_string() + ".trace.txt");
  };
  for (std::uint64_t i = 0; i < 5; ++i) {
    write(run_ / "trace.txt", std::string(kLargeBytes, 'x'));
    runs_.store({1, i}, run_);
    fs::remove(run_ / "trace.txt");
    fs::resize_file(trace_of(i), std::uintmax_t{400} << 20);  // holes: no space is taken
    fs::last_write_time(file_of({1, i}), long_ago + std::chrono::seconds(i));
  }
  write(run_ / "trace.txt", "short");
  runs_.store({1, 5}, run_);
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(fs::exists(file_of({1, i})), i >= 3) << i;
    EXPECT_EQ(fs::exists(trace_of(i)), i >= 3) << i;
  }
}

TEST_F(KeptRunsTest, ALargeRunIsNotKept) {
  fs::resize_file(run_ / "trace.txt", (std::uintmax_t{192} << 20) + 1);
  runs_.store({1, 1}, run_);
  EXPECT_FALSE(fs::exists(kept_));
}

TEST_F(KeptRunsTest, TheOldestGoWhenAllTogetherAreTooLarge) {
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1000);
  for (std::uint64_t i = 0; i < 4; ++i) {
    runs_.store({1, i}, run_);
    fs::resize_file(file_of({1, i}), std::uintmax_t{400} << 20);  // holes: no space is taken
    fs::last_write_time(file_of({1, i}), long_ago + std::chrono::seconds(i));
  }
  runs_.store({1, 4}, run_);
  for (std::uint64_t i = 0; i <= 4; ++i) EXPECT_EQ(fs::exists(file_of({1, i})), i >= 2) << i;
}

TEST(RunKey, ChangesWithEachFileOfNumbers) {
  const fs::path copy =
      fs::temp_directory_path() / ("trellis_numbers_" + std::to_string(::getpid()));
  fs::copy(sim::config_directory(), copy, fs::copy_options::recursive);
  ::setenv("TRELLIS_CONFIG_DIR", copy.c_str(), 1);
  RunSources sources;
  sources.config_file = std::string(TRELLIS_SOURCE_DIR) + "/examples/quickstart.yaml";
  const std::vector<fs::path> files = sim::number_files();
  EXPECT_GE(files.size(), 5U) << "hardware and software";
  ContentHash before = run_key(sources).value();
  EXPECT_EQ(run_key(sources), before);
  for (const fs::path& file : files) {
    std::ofstream(file, std::ios::app) << "\n# another\n";
    const ContentHash after = run_key(sources).value();
    EXPECT_NE(after, before) << file;
    before = after;
  }
  ::unsetenv("TRELLIS_CONFIG_DIR");
  fs::remove_all(copy);
}

}  // namespace
}  // namespace trellis::analysis
