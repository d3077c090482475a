#pragma once

#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "base/files/file_stream.h"

namespace trellis::traces {

/// `metrics.jsonl`: one JSON object a line. Every line reaches the file whole and at once.
class MetricsWriter {
 public:
  /// Appends to an existing file, so that a resumed run continues it; a last line that a killed run
  /// left incomplete is removed. Throws ConfigError when the place cannot be written.
  explicit MetricsWriter(const std::filesystem::path& path);
  /// NaN and infinities become null, bytes that are no UTF-8 are replaced: the line is valid JSON.
  /// REQUIRES: an object.
  void write(const nlohmann::json& object);

 private:
  FileStream stream_;
};

}  // namespace trellis::traces
