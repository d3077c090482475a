#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"

namespace trellis::checkpoint {

using native::Manifest;

namespace {

bool is_of_states(const std::string& file) { return file.starts_with(native::kStatesFolder); }

bool has_states(const Manifest& manifest) {
  return std::ranges::any_of(manifest.files,
                             [](const auto& file) { return is_of_states(file.first); });
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::shared_ptr<Storage> storage, std::string suffix,
                                   RunIdentity self)
    : storage_(std::move(storage)), suffix_(std::move(suffix)), self_(std::move(self)) {
  for (const std::string& tag : tags()) {
    const std::string path = join_path(tag, native::kManifestFile);
    if (!is_complete(tag) || !storage_->exists(path)) continue;
    try {
      const Manifest manifest =
          Manifest::from_json(storage_->read_text(path), storage_->address() + "/" + path);
      add({tag, manifest.step, manifest.sequence, manifest.metric, has_states(manifest),
           is_own(manifest, tag)});
    } catch (const Error& error) {
      log_warning(error.what());
      unreadable_.push_back({tag, error.what()});
    }
  }
}

/// Folders that a save has begun, with or without its end.
std::vector<std::string> CheckpointFolder::tags() const {
  std::vector<std::string> tags;
  if (!storage_->exists("")) return tags;
  for (const Entry& entry : storage_->list("", false)) {
    if (entry.is_directory && !is_set_aside(entry.path) &&
        storage_->exists(join_path(entry.path, native::kBeginFile)))
      tags.push_back(entry.path);
  }
  return tags;
}

bool CheckpointFolder::is_complete(const std::string& tag) const {
  const auto has = [&](const char* mark) {
    return native::problem_of_mark(*storage_, tag, mark).empty();
  };
  return has(native::kBeginFile) && has(native::kDoneFile) &&
         !storage_->exists(native::unfinished_marker(tag));
}

/// One that the user gave another name, or a link to one, is the user's.
bool CheckpointFolder::is_own(const Manifest& manifest, const std::string& tag) const {
  if (!manifest.tag.empty() && manifest.tag != tag) return false;
  return manifest.run == self_.run || (manifest.run.empty() && self_.owns_unnamed);
}

std::optional<KeptCheckpoint> CheckpointFolder::newest() const {
  if (complete_.empty()) return std::nullopt;
  return complete_.back();
}

std::int64_t CheckpointFolder::time_of(const std::string& tag) const {
  for (const Entry& entry : storage_->list(tag, /*recursive=*/false)) {
    if (entry.path == join_path(tag, native::kDoneFile)) return entry.modified_ns;
  }
  return 0;
}

std::optional<CheckpointFolder::Unreadable> CheckpointFolder::newest_unreadable() const {
  if (unreadable_.empty()) return std::nullopt;
  const auto newest = std::ranges::max_element(
      unreadable_, {}, [this](const Unreadable& one) { return time_of(one.tag); });
  const bool is_newest = complete_.empty() || time_of(newest->tag) >= time_of(complete_.back().tag);
  return is_newest ? std::optional(*newest) : std::nullopt;
}

std::int64_t CheckpointFolder::next_sequence() const {
  return complete_.empty() ? 1 : complete_.back().sequence + 1;
}

void CheckpointFolder::clean_up() {
  if (!storage_->exists("")) return;
  // Every save and deletion is marked from before its first change to after its last one. A folder
  // without a mark is not ours to remove, whatever is missing in it: a folder of TensorFlow also
  // has a file `checkpoint`, and other software may save here. NeMo has marks of the same name,
  // which are empty.
  const std::string end = native::unfinished_marker(suffix_);
  const std::string marker = native::unfinished_marker("");
  std::set<std::string> links;
  for (const Entry& entry : storage_->list("", false)) {
    if (entry.is_link) links.insert(entry.path);
  }
  for (const Entry& entry : storage_->list("", false)) {
    if (entry.is_directory || entry.is_link || !entry.path.ends_with(end)) continue;
    const std::string tag = entry.path.substr(0, entry.path.size() - marker.size());
    if (links.contains(tag) || storage_->read_text(entry.path) != "1") continue;
    log_info(storage_->address() + "/" + tag + ": removed: its save or deletion was interrupted");
    storage_->remove_directory(tag);
    storage_->remove_file(entry.path);
  }
  storage_->remove_unfinished("");
}

CheckpointFolder::FreeTag CheckpointFolder::free_tag(const std::string& name, bool last) {
  const std::string end = std::string(last ? kLastSuffix : "") + kCheckpointSuffix;
  FreeTag free;
  for (int version = 0;; ++version) {
    free.tag = name + (version == 0 ? "" : "-v" + std::to_string(version)) + end;
    if (!storage_->exists(free.tag)) return free;
    const auto is_same = [&](const KeptCheckpoint& kept) {
      return kept.is_own && kept.tag == free.tag;
    };
    if (std::ranges::any_of(complete_, is_same)) free.replaced.push_back(free.tag);
  }
}

void CheckpointFolder::add(KeptCheckpoint checkpoint) {
  std::erase_if(complete_, [&](const auto& other) { return other.tag == checkpoint.tag; });
  const auto place =
      std::upper_bound(complete_.begin(), complete_.end(), checkpoint,
                       [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  complete_.insert(place, std::move(checkpoint));
}

void CheckpointFolder::remove(const std::string& tag) {
  std::erase_if(complete_, [&](const auto& other) { return other.tag == tag; });
  storage_->write_text(native::unfinished_marker(tag), "1");
  storage_->remove_file(join_path(tag, native::kDoneFile));
  discard(tag);
}

void CheckpointFolder::drop_states(const std::string& tag) {
  Manifest manifest = native::read_manifest(*storage_, tag);
  std::erase_if(manifest.files, [](const auto& file) { return is_of_states(file.first); });
  std::erase_if(manifest.tensors,
                [](const native::StoredTensor& tensor) { return is_of_states(tensor.file); });
  storage_->write_text(join_path(tag, native::kManifestFile), manifest.to_json());
  storage_->remove_directory(join_path(tag, "optim"));
  for (KeptCheckpoint& kept : complete_) {
    if (kept.tag == tag) kept.has_states = false;
  }
}

void CheckpointFolder::discard(const std::string& tag) {
  storage_->remove_directory(tag);
  storage_->remove_file(native::unfinished_marker(tag));
}

bool is_set_aside(const std::string& tag) {
  const std::size_t at = tag.rfind(kDamagedSuffix);
  if (at == std::string::npos) return false;
  const std::string rest = tag.substr(at + std::string(kDamagedSuffix).size());
  return rest.empty() ||
         (rest.starts_with('-') && rest.find_first_not_of("0123456789", 1) == std::string::npos);
}

}  // namespace trellis::checkpoint
