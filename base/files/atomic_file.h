#pragma once

#include <filesystem>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "base/files/file_stream.h"
#include "base/files/partial_files.h"

namespace trellis {

/// A file that appears under its name only when it is complete: written as "<name>.partial",
/// renamed by commit(). Missing folders are created. Two writers of one name do not mix: the last
/// commit stays. Destroyed without commit(): the partial file and the created folders are removed.
/// A device or a pipe, such as /dev/stdout, is written as it is; a symbolic link stays one, its
/// target is replaced.
class AtomicFile {
 public:
  explicit AtomicFile(
      std::filesystem::path path);  ///< throws ConfigError when the place cannot be written
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  [[nodiscard]] std::ostream& stream() { return *stream_; }

  enum class Durability {
    kPowerCut,
    kProcess
  };  ///< what the content survives; kProcess: it can be made again
  /// Flush, check, rename. Throws OutputError with the reason, such as a full disk.
  void commit(Durability durability = Durability::kPowerCut);

 private:
  void open_partial();

  std::filesystem::path path_;
  std::filesystem::path partial_;  ///< "": a device
  std::vector<std::filesystem::path> created_folders_;
  std::optional<FileStream> stream_;
  std::optional<PartialFile> under_way_;
  bool committed_ = false;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           AtomicFile::Durability durability = AtomicFile::Durability::kPowerCut);

}  // namespace trellis
