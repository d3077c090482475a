#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The log files of a run, with NeMo's names:
///
///   nemo_log_globalrank-G_localrank-L.txt   what rank G says; log_local_rank_0_only:
///     one file per node, log_global_rank_0_only: one per job
///   nemo_error_log.txt             warnings and errors of every rank, also of those without a file
///   lightning_logs.txt                      the training loop: steps, validation, why it ended
///
/// Lines are "[date time level] rank G: text". Messages that the process logs outside its ranks
/// (base/log.h) are logged by its first rank.
class RankLogs {
 public:
  /// Creates the files. Throws ConfigError when the place cannot be written.
  RankLogs(const std::filesystem::path& directory, const RunConfig& config);
  /// For the given ranks of the world alone: the others log nothing.
  RankLogs(const std::filesystem::path& directory, const RunConfig& config,
           const std::vector<int>& ranks);
  RankLogs(const RankLogs&) = delete;
  RankLogs& operator=(const RankLogs&) = delete;
  ~RankLogs();

  [[nodiscard]] bool has_file(int rank) const;
  /// Writes to the files only. Safe for several threads.
  void write(int rank, LogLevel level, std::string_view text);
  void lightning(std::string_view text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One rank's voice.
class RankLog {
 public:
  /// `logs`: null when the run has no files.
  RankLog(int rank, RankLogs* logs) : rank_(rank), logs_(logs) {}
  void note(std::string_view text) const { write(LogLevel::kInfo, text); }  ///< to the files
  void info(std::string_view text) const {
    say(LogLevel::kInfo, text);
  }  ///< to the files; rank 0's is seen on the console too
  void warning(std::string_view text) const { say(LogLevel::kWarning, text); }
  void error(std::string_view text) const {
    write(LogLevel::kError, text);
  }  ///< to the files: whoever ends the run prints it

 private:
  void write(LogLevel level, std::string_view text) const {
    if (logs_ != nullptr) logs_->write(rank_, level, text);
  }
  void say(LogLevel level, std::string_view text) const {
    rank_ == 0 ? log(level, text) : write(level, text);
  }
  int rank_;
  RankLogs* logs_;
};

}  // namespace trellis::trainer
