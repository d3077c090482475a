#include "base/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace trellis {
namespace {

/// False when its last holder renamed or removed the file after it was opened here.
bool is_still_at(const std::filesystem::path& path, int descriptor) {
  struct stat here{}, there{};
  return ::fstat(descriptor, &here) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

}  // namespace

std::optional<FileLock> FileLock::try_lock(const std::filesystem::path& path) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0) throw std::system_error(errno, std::generic_category());
    FileLock lock(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
    if (is_still_at(path, descriptor)) return lock;
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int FileLock::release() { return std::exchange(descriptor_, -1); }

}  // namespace trellis
