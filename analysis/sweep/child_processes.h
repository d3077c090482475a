#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trellis::analysis {

/// This program run with other arguments, several at a time. Ctrl-C and SIGTERM reach only the
/// parent, which ends the children.
class ChildProcesses {
 public:
  struct Result {
    std::size_t key = 0;
    int exit_code = 0;
    std::string out, err;
  };

  /// For what children say until they end, a new folder is made, `place` with a random suffix, and
  /// removed at the end. Throws ConfigError.
  explicit ChildProcesses(const std::filesystem::path& place);
  ~ChildProcesses();  ///< kills those that still run
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  /// A folder of the child's own.
  [[nodiscard]] std::filesystem::path folder_of(std::size_t key) const {
    return folder_ / std::to_string(key);
  }
  void start(std::size_t key, const std::vector<std::string>& arguments);
  [[nodiscard]] std::size_t running() const { return running_.size(); }
  /// The next one that ends; none when a signal asked to stop. REQUIRES: one runs.
  [[nodiscard]] std::optional<Result> wait();
  [[nodiscard]] static bool stop_requested();

 private:
  std::filesystem::path folder_;
  std::map<pid_t, std::size_t> running_;
};

}  // namespace trellis::analysis
