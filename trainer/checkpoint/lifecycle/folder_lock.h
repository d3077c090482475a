#pragma once

#include <string>

namespace trellis::checkpoint {

/// One run at a time saves into a folder: another one would take saves that are under way for
/// remainders, and remove them. Held by the process, and so free as soon as it has ended in
/// whatever way; nothing is written. S3, and file systems without locks, have none.
class FolderLock {
 public:
  /// Makes the folder when it is not there. Throws ConfigError when another run holds it.
  explicit FolderLock(const std::string& address);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace trellis::checkpoint
