#include "trainer/files/run/rank_log.h"

#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

/// Two nodes of two ranks.
RunConfig four_ranks() {
  RunConfig config;
  config.trainer.devices = 2;
  config.trainer.num_nodes = 2;
  return config;
}

std::set<std::string> files_of(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

std::string log_of(int global_rank, int local_rank) {
  return "nemo_log_globalrank-" + std::to_string(global_rank) + "_localrank-" +
         std::to_string(local_rank) + ".txt";
}

TEST(RankLogs, TheSwitchesChooseWhichRanksWriteAFile) {
  struct Case {
    bool local_only, global_only;
    std::vector<int> ranks;
  };
  for (const Case& one :
       {Case{false, false, {0, 1, 2, 3}}, Case{true, false, {0, 2}}, Case{false, true, {0}}}) {
    const TemporaryDirectory temporary;
    RunConfig config = four_ranks();
    config.exp_manager.log_local_rank_0_only = one.local_only;
    config.exp_manager.log_global_rank_0_only = one.global_only;
    const RankLogs logs(temporary.path(), config);
    std::set<std::string> expected = {"nemo_error_log.txt", "lightning_logs.txt"};
    for (const int rank : one.ranks) expected.insert(log_of(rank, rank % 2));
    EXPECT_EQ(files_of(temporary.path()), expected);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(logs.has_file(rank), expected.contains(log_of(rank, rank % 2))) << rank;
  }
}

TEST(RankLogs, EachMessageIsOnceInItsRanksFileAndFromWarningsOnInTheErrorLog) {
  for (const bool only_rank_0 : {false, true}) {
    const TemporaryDirectory temporary;
    RunConfig config = four_ranks();
    config.exp_manager.log_global_rank_0_only = only_rank_0;
    testing::internal::CaptureStderr();
    {
      RankLogs logs(temporary.path(), config);
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 4; ++rank) {
        ranks.emplace_back([rank, &logs] {
          const RankLog log(rank, &logs);
          const std::string name = std::to_string(rank);
          for (int i = 0; i < 50; ++i) log.note("note " + name + "." + std::to_string(i) + ";");
          log.info("info {} " + name + ";");
          log.warning("warning " + name + ";");
          log.error("error " + name + ";");
        });
      }
      for (std::thread& rank : ranks) rank.join();
    }
    const std::string console = testing::internal::GetCapturedStderr(),
                      errors = read_all(temporary.path() / "nemo_error_log.txt");
    for (int rank = 0; rank < 4; ++rank) {
      const std::string name = std::to_string(rank);
      for (const char* level : {"info {} ", "warning ", "error "}) {
        EXPECT_EQ(times(errors, level + name + ";"), level[0] == 'i' ? 0 : 1) << level << name;
        EXPECT_EQ(times(console, level + name + ";"), rank == 0 && level[0] != 'e' ? 1 : 0)
            << level << name;
      }
      if (only_rank_0 && rank > 0) continue;
      const std::string own = read_all(temporary.path() / log_of(rank, rank % 2));
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(times(own, "rank " + name + ": note " + name + "." + std::to_string(i) + ";"), 1);
      for (const char* level : {"info {} ", "warning ", "error "})
        EXPECT_EQ(times(own, level + name + ";"), 1) << level << name;
      EXPECT_EQ(times(own, ";\n"), 53) << "nothing of another rank";
    }
  }
}

TEST(RankLogs, ALineHasTimeLevelAndRank) {
  const TemporaryDirectory temporary;
  {
    RankLogs logs(temporary.path(), four_ranks());
    RankLog(3, &logs).warning("careful");
    logs.lightning("step 1");
  }
  const std::string time = "\\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} ";
  EXPECT_THAT(read_all(temporary.path() / log_of(3, 1)),
              MatchesRegex(time + "warning\\] rank 3: careful\n"));
  EXPECT_THAT(read_all(temporary.path() / "nemo_error_log.txt"),
              MatchesRegex(time + "warning\\] rank 3: careful\n"));
  EXPECT_THAT(read_all(temporary.path() / "lightning_logs.txt"),
              MatchesRegex(time + "info\\] step 1\n"));
}

TEST(RankLogs, WhatTheProcessSaysIsRankZerosWhileTheFilesAreOpen) {
  const TemporaryDirectory temporary;
  testing::internal::CaptureStderr();
  log_info("too early");
  {
    const RankLogs logs(temporary.path(), four_ranks());
    log_info("data: two documents");
    log_warning("an odd file");
  }
  log_info("too late");
  (void)testing::internal::GetCapturedStderr();
  const std::string own = read_all(temporary.path() / log_of(0, 0));
  EXPECT_EQ(times(own, "rank 0: data: two documents\n"), 1);
  EXPECT_EQ(times(own, "rank 0: an odd file\n"), 1);
  EXPECT_EQ(times(own, "too "), 0);
  EXPECT_EQ(times(read_all(temporary.path() / "nemo_error_log.txt"), "rank 0: an odd file\n"), 1);
  EXPECT_EQ(read_all(temporary.path() / log_of(1, 1)), "");
}

TEST(RankLogs, APlaceThatCannotBeWrittenIsNamed) {
  const TemporaryDirectory temporary;
  temporary.write("file", "");
  try {
    const RankLogs logs(temporary.path() / "file", four_ranks());
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(log_of(0, 0) + ": cannot write the log"));
  }
}

}  // namespace
}  // namespace trellis::trainer
