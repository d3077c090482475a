#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace trellis {

/// Exit codes of the program `trellis`; scripts rely on them.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,    ///< our bug
  kConfig = 2,      ///< the user's file, flag or data is wrong
  kDoesNotFit = 3,  ///< a device ran out of modelled memory
  kHang = 4,        ///< a rank never arrived, or ranks disagree about a collective
  kParity = 5,
  kPerfGate = 6,
  kOutput = 7,  ///< an output could not be written, such as a full disk; not kConfig, which sweep
                ///< takes for an illegal layout
  kInterrupted = 130  ///< Ctrl-C or SIGTERM, after a clean end
};

/// An error that ends the run with a text for the user and an exit code. The text says what, where,
/// expected, got, what to do. Control characters in it (names and values of files that others
/// wrote) are escaped: wherever the text is printed, it cannot control a terminal.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& text);
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The user's mistake in a file, a flag or data. One ConfigError carries every problem of a file,
/// one per line.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& text) : Error(ExitCode::kConfig, text) {}
};

/// Collects the problems of one input so that they are all reported in one pass.
class Problems {
 public:
  /// `where` is "file:line:key" or the nearest thing to it. One line, whatever the texts hold: a
  /// value with a line end cannot forge a second problem.
  void add(const std::string& where, const std::string& text);
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  /// Throws one ConfigError with every line, when there is any.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace trellis
