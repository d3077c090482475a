#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

/// A folder or file, and the storage around it: marks of a save are next to the checkpoint.
struct Place {
  std::shared_ptr<Storage> storage;
  std::string path;  ///< relative to the storage; "": its root, as for a whole bucket
  [[nodiscard]] std::string address() const;
  [[nodiscard]] bool has(const std::string& name) const;  ///< a file or folder in it
};

/// "run/checkpoints/a.ckpt" is "a.ckpt" in "run/checkpoints". An address of S3 keeps its options.
/// Throws ConfigError as open_storage.
[[nodiscard]] Place open_place(const std::string& address);

}  // namespace trellis::checkpoint
