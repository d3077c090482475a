#pragma once

#include <filesystem>
#include <fstream>

#include <nlohmann/json_fwd.hpp>

namespace trellis::traces {

/// `metrics.jsonl`: one JSON object a line. Every line reaches the file whole and at once.
class MetricsWriter {
 public:
  /// Appends to an existing file, so that a resumed run continues it; a last line that a killed run left incomplete is removed.
  /// Throws ConfigError when the place cannot be written.
  explicit MetricsWriter(std::filesystem::path path);
  /// NaN and infinities become null, bytes that are no UTF-8 are replaced: the line is valid JSON. REQUIRES: an object.
  void write(const nlohmann::json& object);

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace trellis::traces
