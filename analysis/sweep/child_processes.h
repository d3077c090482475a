#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file_lock.h"
#include "trainer/config/run_source.h"

namespace trellis::analysis {

/// A step to simulate.
struct StepQuestion : trainer::RunSource {
  bool whole = true;  ///< false: of the report only the key "simulated"
};

/// Steps simulated by this program's processes (`trellis answer`), several at a time. One that has
/// answered takes the next question: what it has loaded and timed is there already. Ctrl-C and
/// SIGTERM reach only the parent, which ends the children.
class ChildProcesses {
 public:
  struct Result {
    std::size_t key = 0;
    int exit_code = 0;
    std::string out, err;
    /// The text after the last "error: " of `err`, on one line.
    [[nodiscard]] std::string error() const;
  };

  /// For what children say, a new folder is made, `place` with a random suffix, and removed at the
  /// end; those of programs that were killed are removed now. Throws ConfigError.
  explicit ChildProcesses(const std::filesystem::path& place);
  ~ChildProcesses();  ///< kills those that still run
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  void start(std::size_t key, const StepQuestion& question);
  [[nodiscard]] std::size_t running() const { return running_; }
  /// The next one that ends; none when a signal asked to stop. REQUIRES: one runs.
  [[nodiscard]] std::optional<Result> wait();
  [[nodiscard]] static bool stop_requested();

 private:
  struct Process {
    pid_t id = 0;
    int socket = -1;
    std::optional<std::size_t> key;  ///< of what it does; none: it waits for a question
  };

  [[nodiscard]] std::filesystem::path folder_of(std::size_t key) const {
    return folder_ / std::to_string(key);
  }
  Process& idle_process();
  void remove_ended();
  [[nodiscard]] Result take(Process& process);
  void end(Process& process);

  std::filesystem::path folder_;
  std::optional<FileLock> lock_;  ///< in the folder: this program lives
  std::list<Process> processes_;
  std::size_t running_ = 0;
};

}  // namespace trellis::analysis
