#include "trainer/files/checkpoint/lifecycle/damaged.h"

#include <algorithm>
#include <ranges>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint {
namespace {}  // namespace

std::string first_damage(const Place& checkpoint) {
  native::Manifest manifest;
  try {
    manifest = native::read_manifest(*checkpoint.storage, checkpoint.path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  for (const auto& [file, stored] : manifest.files) {
    const std::string path = join_path(checkpoint.path, file);
    if (std::string what = native::damage_of(*checkpoint.storage, path, stored); !what.empty())
      return join_path(checkpoint.address(), file) + ": " + what;
  }
  return "";
}

std::optional<KeptCheckpoint> next_whole(const Place& damaged) {
  const CheckpointFolder folder(damaged.storage, "");
  bool is_older = std::ranges::none_of(
      folder.complete(), [&](const KeptCheckpoint& kept) { return kept.tag == damaged.path; });
  for (const KeptCheckpoint& kept : folder.complete() | std::views::reverse) {
    if (is_older && first_damage({damaged.storage, kept.tag}).empty()) return kept;
    is_older = is_older || kept.tag == damaged.path;
  }
  return std::nullopt;
}

std::string set_aside(const Place& damaged) {
  std::string name = damaged.path + kDamagedSuffix;
  for (int number = 2; damaged.storage->exists(name); ++number)
    name = damaged.path + kDamagedSuffix + "-" + std::to_string(number);
  damaged.storage->rename(damaged.path, name);
  return name;
}

}  // namespace trellis::checkpoint
