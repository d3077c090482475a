#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>

namespace trellis::trainer {

/// The Python program that renders templates; a generated source holds it.
extern const std::string_view kRenderChats;

/// A Python that answers each line it is given, and is ended when it does not. Not for several
/// threads at a time.
class TemplateChild {
 public:
  /// Starts `program`, without this program's environment. Throws ConfigError when there is no
  /// Python.
  explicit TemplateChild(std::string_view program = kRenderChats);
  ~TemplateChild();
  TemplateChild(const TemplateChild&) = delete;
  TemplateChild& operator=(const TemplateChild&) = delete;

  static constexpr std::chrono::milliseconds kStartLimit{60000};      ///< on a busy machine
  static constexpr std::size_t kMostAnswer = std::size_t{256} << 20;  ///< bytes

  enum class End { kAnswered, kTooLate, kDied };
  /// The renderer of chats says so when it has what it needs. Throws ConfigError with what it
  /// misses: Jinja that keeps templates in its sandbox.
  void await_ready();
  /// Sends `line` and waits for the answer, a number of bytes after a line with that number. After
  /// another end than kAnswered the child is no more.
  [[nodiscard]] End ask(const std::string& line, std::chrono::milliseconds limit,
                        std::string& answer);

 private:
  void kill();
  /// Moves the answer in `received_` to `answer` and returns true; false while it is incomplete.
  [[nodiscard]] bool take(std::string& answer);
  pid_t child_ = -1;
  int socket_ = -1;
  std::string received_;
};

/// $TRELLIS_PYTHON; else that of the environment in which LibTorch or Arrow of this process are,
/// whose packages include Jinja and tree-sitter; else that of the environment of the build, which
/// verbs that train nothing do not load; else the first python3 of PATH. Throws ConfigError when
/// there is none.
[[nodiscard]] std::string find_python();

/// Why find_python()'s interpreter cannot render templates; "" when it can.
[[nodiscard]] std::string why_no_templates();

}  // namespace trellis::trainer
