#pragma once

#include <memory>
#include <string>
#include <vector>

namespace trellis::trainer {
class TemplateChild;
}

/// The words of a shell script without executing any of it. A Python with tree-sitter parses it
/// (read_shell.py); a text that holds nothing but words needs none.
namespace trellis::analysis {

struct ShellWord {
  std::string text;  ///< expanded; what is not known stays as it is written: "$1/logs"
  int line = 0;      ///< where its first character is written, which may be in an assignment
  /// The part of the shell that decides the word, such as "$1", "$(date)" or "the condition in line
  /// 12"; "": its text is what bash makes of it.
  std::string undetermined = {};
  /// The variable that the script does not set and whose default was taken: "SEQ" of
  /// ${SEQ:-2048}; "": none.
  std::string assumed = {};
  bool operator==(const ShellWord&) const = default;
};

/// The words of one simple command, without its redirections.
using ShellCommand = std::vector<ShellWord>;

struct ShellScript {
  std::vector<ShellCommand> commands;  ///< that bash would start, in order, of all ways
  std::vector<ShellCommand> lists;     ///< variables that hold arguments when the script ends
};

/// Reads the commands of a text that means the same without a shell: words, quoted words, comments
/// and variables for other programs. Returns false for any other text.
[[nodiscard]] bool read_plain_words(const std::string& text, std::vector<ShellCommand>& commands);

/// The parser, which is started by the first script that needs it. Not for several threads at a
/// time.
class ShellReader {
 public:
  ShellReader();
  ~ShellReader();
  /// Throws ConfigError "FILE:LINE: …": it is no script; "FILE: …": it needs tree-sitter, which is
  /// not there.
  [[nodiscard]] ShellScript read(const std::string& text, const std::string& file);

 private:
  std::unique_ptr<trainer::TemplateChild> child_;
};

}  // namespace trellis::analysis
