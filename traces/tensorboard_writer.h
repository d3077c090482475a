#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/files/file_stream.h"

namespace trellis::traces {

/// A TensorBoard event file. TensorBoard finds it when its name contains "tfevents". Every record
/// reaches the file whole and at once, so a killed run leaves a valid file.
class TensorBoardWriter {
 public:
  /// Replaces an existing file. Throws ConfigError when the place cannot be written.
  TensorBoardWriter(const std::filesystem::path& path, double wall_time);
  /// `wall_time`: seconds since 1970, the caller's.
  void scalar(std::string_view tag, std::int64_t step, double value, double wall_time);

 private:
  void write_record(const std::string& event);

  FileStream stream_;
};

}  // namespace trellis::traces
