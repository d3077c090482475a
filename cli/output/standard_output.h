#pragma once

#include <streambuf>

#include "base/files/file_stream.h"

namespace trellis::cli {

/// The one owner of standard output: while it lives, std::cout writes through it, and finish()
/// says whether everything arrived. Nothing else of the program writes there. Create it first in
/// main(): before it another file could take the place of a standard stream that the caller closed.
class StandardOutput {
 public:
  StandardOutput();
  ~StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  /// Writes the rest. Returns `exit_code`, or ExitCode::kOutput after an error on stderr when the
  /// verb was fine and its output was lost. A reader that went away (`| head -1`) ends the process
  /// as by SIGPIPE, silently.
  [[nodiscard]] int finish(int exit_code);

 private:
  DescriptorBuffer buffer_;
  std::streambuf* before_;
};

}  // namespace trellis::cli
