#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace trellis {

/// A file that appears under its name only when it is complete: written as "<name>.partial", renamed by commit().
/// Destroyed without commit(): the partial file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);  ///< throws ConfigError when the place cannot be written
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  [[nodiscard]] std::ofstream& stream() { return stream_; }
  void commit();  ///< flush, check, rename; throws Error when the disk refuses

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream stream_;
  bool committed_ = false;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace trellis
