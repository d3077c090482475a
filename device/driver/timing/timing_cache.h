#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/files/cache_directory.h"
#include "device/driver/timing/timed_program.h"

namespace trellis::device {

/// Timed pieces on disk, so that the next process need not compile and time them: what a piece
/// costs depends on its content, on the numbers of the machine and on this program's code, and all
/// three are in the file's key. One cache file (base/files/cache_file.h) per piece. A file that is
/// not the piece's is ignored with a warning and written again; a place that cannot be written is
/// reported once.
class TimingCache {
 public:
  /// No directory: nothing is kept.
  TimingCache(std::optional<std::filesystem::path> directory, const sim::SystemConfig& system);

  [[nodiscard]] std::optional<TimedPiece> load(const ContentHash& piece) const;
  void store(const ContentHash& piece, const TimedPiece& timed);

 private:
  [[nodiscard]] std::filesystem::path file_of(const ContentHash& piece) const;

  [[nodiscard]] ContentHash key_of(const ContentHash& piece) const;

  ContentHash machine_;                             ///< and code
  std::optional<std::filesystem::path> directory_;  ///< of this machine and code
};

/// The build ID that the linker wrote into the binary that holds this code, as hexadecimal digits;
/// "" when it wrote none.
[[nodiscard]] std::string build_id();

/// A timed piece as bytes. decode: none when the bytes are no piece; REQUIRES a checksum elsewhere
/// to find a changed figure.
[[nodiscard]] std::string encode(const TimedPiece& piece);
[[nodiscard]] std::optional<TimedPiece> decode(std::string_view bytes);

}  // namespace trellis::device
