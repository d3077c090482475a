#include "base/atomic_file.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"

namespace trellis {
namespace {

/// Without it a power cut after the rename could leave a complete name with no content.
bool sync_to_disk(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::fsync(fd) == 0;
  ::close(fd);
  return ok;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  errno = 0;
  stream_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!stream_) {
    throw ConfigError(path_.string() + ": cannot write here: " + std::strerror(errno) +
                      "; create the directory or choose another place");
  }
}

AtomicFile::~AtomicFile() {
  if (committed_) return;
  stream_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void AtomicFile::commit() {
  TRELLIS_CHECK(!committed_, "commit() called twice for " + path_.string());
  errno = 0;
  stream_.close();
  const bool written = !stream_.fail() && sync_to_disk(partial_);
  std::error_code error(errno, std::generic_category());
  if (written) std::filesystem::rename(partial_, path_, error);
  if (!written || error) {
    throw Error(ExitCode::kConfig, path_.string() + ": write failed: " + error.message() + "; is the disk full?");
  }
  committed_ = true;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.stream().write(content.data(), static_cast<std::streamsize>(content.size()));
  file.commit();
}

}  // namespace trellis
