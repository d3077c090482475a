#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trellis {

/// A regular file, open for reading. A named pipe would block its reader and a device may never
/// end, so neither is opened.
class InputFile {
 public:
  /// Throws ConfigError "PATH: cannot read: it is a named pipe; expected a regular file".
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::int64_t size() const { return size_; }  ///< bytes, when it was opened
  /// The content. Throws ConfigError when the disk fails, or when it is longer than `most` bytes.
  [[nodiscard]] std::string text(std::int64_t most) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

/// Files that are read as a whole are far below it; above it a wrong file was named, and reading it
/// would only fill the memory.
inline constexpr std::int64_t kMostInputBytes = std::int64_t{4} << 30;

/// The content of a regular file. Throws as InputFile.
[[nodiscard]] std::string read_input_file(const std::filesystem::path& path,
                                          std::int64_t most = kMostInputBytes);

/// Throws ConfigError "FILE:LINE: expected a text in UTF-8, got the byte 0xf6" when it is none.
void require_utf8(std::string_view text, const std::string& file);

/// Why `path` cannot be opened by InputFile, such as "it is a folder; expected a regular file"; ""
/// when it can be tried.
[[nodiscard]] std::string why_no_input_file(const std::filesystem::path& path);

}  // namespace trellis
