#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// Result of a check that reads all files of a checkpoint, of any format.
struct FileCheck {
  struct Damage {
    std::string path, problem;
  };
  std::int64_t files = 0, bytes = 0;
  std::vector<Damage> damaged;
  /// Files without a hash or a checksum: damage of what is in them cannot be seen.
  std::vector<std::string> unseen;
  bool is_ours = false;  ///< has manifest.json
};

/// Compares each file with its hash (manifest.json, trellis_manifest.json); one without is compared
/// with the checksums of its records (files of torch.save, also in folders of DCP), and opened as
/// its format is. `progress`: files that are done, and their number. Throws ConfigError when a
/// manifest itself is damaged, or there is no checkpoint.
[[nodiscard]] FileCheck check_files(
    const Place& place, const std::function<void(std::int64_t done, std::int64_t of)>& progress);

/// Writes the hashes of all files, in a separate file. Throws ConfigError for a single file.
void write_checksums(const Place& place);

}  // namespace trellis::checkpoint
