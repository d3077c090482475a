#include "trainer/checkpoint/lifecycle/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace trellis::checkpoint {

FolderLock::FolderLock(const std::string& address) {
  if (address.starts_with("s3://")) return;
  // A folder that cannot be made is an error of the first save, which says what to do.
  std::error_code ignored;
  std::filesystem::create_directories(address, ignored);
  descriptor_ = open(address.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor_);
  throw ConfigError(address +
                    ": another run saves its checkpoints here: expected one run at a time; wait "
                    "until it has ended, or choose another folder "
                    "(exp_manager.checkpoint_callback_params.dirpath)");
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace trellis::checkpoint
