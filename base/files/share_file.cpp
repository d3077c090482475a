#include "base/files/share_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <system_error>

#include "base/output_error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

/// Copy on write: btrfs, XFS and others.
bool clone(const fs::path& from, const fs::path& to) {
  const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return false;
  const int target = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool cloned = target >= 0 && ::ioctl(target, FICLONE, source) == 0;
  if (target >= 0) ::close(target);
  ::close(source);
  if (target >= 0 && !cloned) ::unlink(to.c_str());
  return cloned;
}

}  // namespace

void share_file(const fs::path& from, const fs::path& to) {
  fs::path partial = to;
  partial += "." + std::to_string(::getpid()) + ".partial";
  std::error_code error;
  fs::remove(partial, error);
  if (!clone(from, partial) && ::link(from.c_str(), partial.c_str()) != 0)
    fs::copy_file(from, partial, error);
  if (!error) fs::rename(partial, to, error);
  // Two names of one file: a rename leaves both.
  std::error_code ignored;
  fs::remove(partial, ignored);
  if (error) throw OutputError(to, error.value());
}

}  // namespace trellis
