#pragma once

#include <optional>
#include <string>

#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/place.h"

/// Handling of a checkpoint whose content is not what was saved.
namespace trellis::checkpoint {

/// Reads every file of the checkpoint: what is wrong with it first; "": it is what was saved.
/// Throws ConfigError when a file cannot be read, which says nothing about what is in it.
[[nodiscard]] std::string first_damage(const Place& checkpoint);

/// The newest one of the folder that is older than `damaged` and whole: all of its files are read.
[[nodiscard]] std::optional<KeptCheckpoint> next_whole(const Place& damaged);

/// Gives it the name "<name>.damaged", or "<name>.damaged-2", …, under which no run takes, counts
/// or removes it; returns that. Throws OutputError.
std::string set_aside(const Place& damaged);

}  // namespace trellis::checkpoint
