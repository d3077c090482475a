#pragma once

#include <filesystem>
#include <ostream>
#include <streambuf>
#include <vector>

namespace trellis {

/// Writes to a file descriptor that another object owns, and keeps the reason of the first failure
/// (errno): std::filebuf loses it.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor);
  /// errno of the first failure, 0: none. What follows a failure is not written.
  [[nodiscard]] int error() const { return error_; }
  /// Writes what is buffered. Returns error().
  int flush();

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override { return flush() == 0 ? 0 : -1; }

 private:
  void put(const char* bytes, std::size_t size);

  int descriptor_;
  int error_ = 0;
  std::vector<char> buffer_;
};

/// An output stream into a file. check() reports a failure with the path and the reason of the
/// system.
class FileStream : public std::ostream {
 public:
  enum class Mode { kReplace, kAppend };
  /// Throws ConfigError when the file cannot be opened.
  FileStream(std::filesystem::path path, Mode mode);
  /// Owns `descriptor`, which is open for writing to `path`.
  FileStream(std::filesystem::path path, int descriptor);
  ~FileStream() override;

  /// Everything so far has reached the file when it returns. Throws OutputError.
  void check();
  /// The content survives a power cut when it returns. Throws OutputError.
  void sync_to_disk();

 private:
  std::filesystem::path path_;
  int descriptor_;
  DescriptorBuffer buffer_;
};

}  // namespace trellis
