#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace trellis {

/// Exit code of an output that could not be written, such as a full disk or a file size limit. Not
/// ExitCode::kConfig: the configuration is right, and `sweep` takes code 2 of a simulation for an
/// illegal layout.
inline constexpr ExitCode kOutputFailed = static_cast<ExitCode>(7);

/// An output was opened but could not be written. The text names the output, the reason of the
/// system and what to do.
class OutputError : public Error {
 public:
  explicit OutputError(const std::string& text) : Error(kOutputFailed, text) {}
  /// `reason`: of errno.
  OutputError(const std::filesystem::path& output, int reason);
};

}  // namespace trellis
