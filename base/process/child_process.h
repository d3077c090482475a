#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trellis {

/// A program, its arguments and where its words go.
struct ChildProcess {
  std::filesystem::path program = "/proc/self/exe";  ///< this one
  std::vector<std::string> arguments;                ///< without the program's name
  int in = -1, out = -1, err = -1;                   ///< file descriptors; −1: this program's own
  bool own_group = false;                            ///< a Ctrl-C of the terminal does not reach it
  bool no_environment = false;                       ///< none of this program's variables
  bool alone = false;  ///< without the variables of a launcher (base/process/launch.h): one process
};

/// Starts it. Throws ConfigError when it cannot be run.
[[nodiscard]] pid_t start_child(const ChildProcess& child);
/// Waits for its end: the exit code, or 128 + the signal that ended it.
[[nodiscard]] int wait_for(pid_t child);
/// The same for a status of waitpid.
[[nodiscard]] int exit_code_of(int status);

/// A file that a child writes into, open while this lives. Throws ConfigError when it cannot be
/// made.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& file);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace trellis
