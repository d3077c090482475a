#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>

namespace trellis {

/// A file mapped read-only. Throws ConfigError when it is missing, unreadable or no regular file.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  /// Its pages need not stay in memory: they are read again when someone asks for them.
  void release() const;
  /// The value at `offset`, which may be unaligned and must lie inside.
  template <typename T>
  [[nodiscard]] T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace trellis
