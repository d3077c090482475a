#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace trellis {

/// An output was opened but could not be written. The text names the output, the reason of the
/// system and what to do.
class OutputError : public Error {
 public:
  explicit OutputError(const std::string& text) : Error(ExitCode::kOutput, text) {}
  /// `reason`: of errno.
  OutputError(const std::filesystem::path& output, int reason);
};

}  // namespace trellis
