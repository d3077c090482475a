#include "trainer/files/checkpoint/conversion/new_folder.h"

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

/// The same mark as that of an interrupted save.
std::string mark_of(const Place& place) { return place.path + "-unfinished"; }

bool is_empty_folder(const Place& place) {
  try {
    return place.storage->list(place.path, /*recursive=*/false).empty();
  } catch (const ConfigError&) {
    return false;  // a file
  }
}

}  // namespace

void check_new_folder(const Place& place, const std::string& complete) {
  if (place.path.empty())
    throw ConfigError(place.address() + ": expected the name of a new folder below it");
  if (!place.storage->exists(place.path) || place.storage->exists(mark_of(place)) ||
      is_empty_folder(place))
    return;
  throw ConfigError(
      place.address() +
      (place.has(complete) ? ": there is a complete checkpoint" : ": there is something else") +
      "; expected a new folder: choose another name, or remove it");
}

void begin_new_folder(const Place& place) {
  place.storage->write_text(mark_of(place), "1");
  place.storage->remove_directory(place.path);
}

void end_new_folder(const Place& place) {
  place.storage->sync();
  place.storage->remove_file(mark_of(place));
}

}  // namespace trellis::checkpoint
