#include "trainer/files/run/exp_manager.h"

#include <unistd.h>

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() {
    config_.exp_manager.exp_dir = (temporary_.path() / "runs").string();
    config_.exp_manager.name = "llama";
    config_.resolved_yaml = "name: llama\n";
  }
  trainer::RunDirectory prepare_locked() {
    return prepare_run_directory(config_, {"trellis", "train", "a b.yaml"}, sources_);
  }
  std::filesystem::path prepare() { return prepare_locked().path; }
  [[nodiscard]] std::filesystem::path named(const std::string& version) const {
    return temporary_.path() / "runs" / "llama" / version;
  }

  TemporaryDirectory temporary_;
  RunConfig config_;
  VersionSources sources_{"", "2026-01-02_03-04-05"};
};

TEST_F(RunDirectoryTest, HoldsTheResolvedConfigurationAndTheCommandLine) {
  const auto directory = prepare();
  EXPECT_EQ(read_all(directory / "hparams.yaml"), "name: llama\n");
  EXPECT_EQ(read_all(directory / "cmd-args.log"), "trellis train 'a b.yaml'\n");
}

TEST_F(RunDirectoryTest, IsNamedByDateAndTimeAndNeverShared) {
  EXPECT_EQ(prepare(), named("2026-01-02_03-04-05"));
  EXPECT_EQ(prepare(), named("2026-01-02_03-04-05_1"));
  EXPECT_EQ(prepare(), named("2026-01-02_03-04-05_2"));
}

TEST_F(RunDirectoryTest, CountsVersionsUpFromTheLargest) {
  config_.exp_manager.use_datetime_version = false;
  EXPECT_EQ(prepare(), named("version_0"));
  EXPECT_EQ(prepare(), named("version_1"));
  std::filesystem::create_directories(named("version_9"));
  std::filesystem::create_directories(named("version_x"));
  EXPECT_EQ(prepare(), named("version_10"));
}

TEST_F(RunDirectoryTest, VersionComesFromTheFileThenFromTheEnvironment) {
  sources_.environment = "job7";
  EXPECT_EQ(prepare(), named("job7"));
  config_.exp_manager.version = "mine";
  EXPECT_EQ(prepare(), named("mine"));
}

TEST_F(RunDirectoryTest, ExplicitDirectoryWinsOverEverything) {
  sources_.environment = "job7";
  config_.exp_manager.version = "mine";
  config_.exp_manager.explicit_log_dir = (temporary_.path() / "here" / "deep").string();
  EXPECT_EQ(prepare(), temporary_.path() / "here" / "deep");
}

TEST_F(RunDirectoryTest, KeepsOutputsOfEarlierRunsAndLeavesOtherFilesAlone) {
  config_.exp_manager.version = "mine";
  const auto directory = prepare();
  temporary_.write("runs/llama/mine/metrics.jsonl", "first");
  temporary_.write("runs/llama/mine/events.out.tfevents.1", "first");
  temporary_.write("runs/llama/mine/nemo_log_globalrank-3_localrank-1.txt", "first");
  temporary_.write("runs/llama/mine/nemo_error_log.txt", "first");
  temporary_.write("runs/llama/mine/lightning_logs.txt", "first");
  temporary_.write("runs/llama/mine/notes.txt", "of the user");
  prepare();
  for (const char* log :
       {"nemo_log_globalrank-3_localrank-1.txt", "nemo_error_log.txt", "lightning_logs.txt"}) {
    EXPECT_EQ(read_all(directory / "run_0" / log), "first");
    EXPECT_FALSE(std::filesystem::exists(directory / log));
  }
  EXPECT_EQ(read_all(directory / "run_0" / "metrics.jsonl"), "first");
  EXPECT_EQ(read_all(directory / "run_0" / "events.out.tfevents.1"), "first");
  EXPECT_TRUE(std::filesystem::exists(directory / "run_0" / "hparams.yaml"));
  EXPECT_FALSE(std::filesystem::exists(directory / "metrics.jsonl"));
  EXPECT_EQ(read_all(directory / "notes.txt"), "of the user");
  prepare();
  EXPECT_TRUE(std::filesystem::exists(directory / "run_1" / "hparams.yaml"));
}

TEST_F(RunDirectoryTest, BelongsToOneProcessAtATime) {
  config_.exp_manager.version = "mine";
  {
    const trainer::RunDirectory first = prepare_locked();
    temporary_.write("runs/llama/mine/metrics.jsonl", "of the first");
    try {
      (void)prepare();
      FAIL() << "expected a ConfigError";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(first.path.string() + ": another process writes there now: process " +
                            std::to_string(::getpid()) + " on host "));
      EXPECT_THAT(error.what(), HasSubstr("exp_manager.explicit_log_dir"));
    }
    EXPECT_EQ(read_all(first.path / "metrics.jsonl"), "of the first");
  }
  EXPECT_FALSE(std::filesystem::exists(named("mine") / RunLock::kFileName));
  EXPECT_EQ(prepare(), named("mine"));
}

TEST_F(RunDirectoryTest, NamesAPlaceThatCannotBeWritten) {
  temporary_.write("runs", "a file where a directory should be");
  try {
    prepare();
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr((temporary_.path() / "runs" / "llama").string() +
                                        ": cannot create the run directory: "));
    EXPECT_THAT(error.what(), HasSubstr("exp_manager.explicit_log_dir"));
  }
}

TEST_F(RunDirectoryTest, CopiesTheFilesThatTheUserNames) {
  config_.exp_manager.files_to_copy = {temporary_.write("notes.txt", "why this run")};
  EXPECT_EQ(read_all(prepare() / "notes.txt"), "why this run");
  config_.exp_manager.files_to_copy = {"/no/such/file"};
  try {
    (void)prepare();
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("exp_manager.files_to_copy: cannot copy /no/such/file into"));
  }
}

TEST(VersionSources, DateAndTimeHasNeMosForm) {
  setenv("NEMO_EXPM_VERSION", "from_slurm", 1);
  const VersionSources sources = VersionSources::of_this_process();
  EXPECT_EQ(sources.environment, "from_slurm");
  EXPECT_THAT(sources.date_time,
              testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}"));
}

}  // namespace
}  // namespace trellis::trainer
