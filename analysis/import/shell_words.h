#pragma once

#include <string>
#include <vector>

/// The words of a shell script without executing any of it: assignments of the same file are
/// expanded, everything that bash would have to compute stays a marked word.
namespace trellis::analysis {

struct ShellWord {
  std::string text;  ///< expanded; what is not known stays as it is written: "$1/logs"
  int line = 0;      ///< where its first character is written, which may be in an assignment
  /// What of the shell decides it, such as "$1", "$(date)" or "the condition in line 12"; "": its
  /// text is known.
  std::string undetermined = {};
  bool operator==(const ShellWord&) const = default;
};

/// The words of one simple command, without its redirections.
using ShellCommand = std::vector<ShellWord>;

/// Every simple command of `text` in order, whatever the conditions around it. An assignment under
/// a condition marks its words. Throws ConfigError "FILE:LINE: …" for an unclosed quote, bracket or
/// list, and for expansions that grow beyond a fixed length.
[[nodiscard]] std::vector<ShellCommand> read_shell_commands(const std::string& text,
                                                            const std::string& file);

}  // namespace trellis::analysis
