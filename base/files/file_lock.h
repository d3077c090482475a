#pragma once

#include <filesystem>
#include <optional>

namespace trellis {

/// A file that one holder at a time has locked (flock): of all processes, and within one. The lock
/// ends with the holder, however that ends.
class FileLock {
 public:
  /// Creates the file when it is not there. None: another holder has it. Throws std::system_error
  /// when the file cannot be opened. Safe when holders rename or remove the file while they hold
  /// it. A file system without locks grants it.
  [[nodiscard]] static std::optional<FileLock> try_lock(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  [[nodiscard]] int descriptor() const { return descriptor_; }  ///< open for reading and writing
  [[nodiscard]] int release();  ///< the caller closes it, which ends the lock

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace trellis
