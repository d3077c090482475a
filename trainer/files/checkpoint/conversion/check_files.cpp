#include "trainer/files/checkpoint/conversion/check_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/dcp_metadata.h"
#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"
#include "trainer/files/checkpoint/conversion/format_table.h"
#include "trainer/files/checkpoint/conversion/nxd_content.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"

namespace trellis::checkpoint {
namespace {

using File = std::shared_ptr<const ReadableFile>;

/// Compares the checksums of a zip archive; whether every record has one.
bool check_zip(const File& file) {
  const ZipReader zip(file);
  bool all = true;
  for (const ZipRecord& record : zip.records()) {
    zip.check(record);
    all = all && (record.crc32 != 0 || record.size == 0);
  }
  return all;
}

bool begins_as_zip(const ReadableFile& file) {
  std::array<std::byte, 4> begin{};
  if (file.size() < static_cast<std::int64_t>(begin.size())) return false;
  file.read(0, begin);
  const std::string_view text(reinterpret_cast<const char*>(begin.data()), begin.size());
  return text == std::string_view("PK\x03\x04");
}

/// One check of a folder.
class Checker {
 public:
  explicit Checker(const Place& place) : place_(place) {
    found_.is_ours = place.has(native::kManifestFile);
    if (!found_.is_ours && place.has(native::kBeginFile) && !nxd::is_nxd_folder(place))
      (void)native::read_manifest(*place.storage, place.path);  // which says what is wrong
    for (const char* file : {native::kManifestFile, native::kChecksumsFile}) {
      if (!place.has(file)) continue;
      const std::string path = join_path(place.path, file);
      hashes_.merge(native::Manifest::from_json(place.storage->read_text(path),
                                                join_path(place.storage->address(), path))
                        .files);
      manifests_.insert(file);
    }
  }

  FileCheck run(const std::function<void(std::int64_t, std::int64_t)>& progress) {
    const bool is_known = std::ranges::any_of(
        format_table(), [this](const Format& format) { return format.is_at(place_); });
    if (!is_known) (void)open_for_reading(place_.address());  // which says what is there
    list();
    for (const auto& [name, hash] : hashes_) {
      if (!files_.contains(name)) damaged(name, "is missing");
    }
    std::int64_t done = 0;
    for (const auto& [name, bytes] : files_) {
      guarded(name, [&] { check(name); });
      found_.bytes += bytes;
      progress(++done, static_cast<std::int64_t>(files_.size()));
    }
    found_.files = done;
    if (found_.is_ours)
      check_own_marks();
    else if (!manifests_.contains(native::kChecksumsFile))
      guarded("", [&] { (void)open_for_reading(place_.address()); });
    return std::move(found_);
  }

 private:
  void damaged(const std::string& name, const std::string& problem) {
    const auto is_known = [&](const FileCheck::Damage& damage) { return damage.path == name; };
    if (std::ranges::none_of(found_.damaged, is_known)) found_.damaged.push_back({name, problem});
  }
  template <typename Work>
  void guarded(const std::string& name, const Work& work) {
    try {
      work();
    } catch (const ConfigError& error) {
      damaged(name, error.what());
    }
  }

  void list() {
    if (!place_.path.empty() && place_.storage->exists(place_.path)) {
      try {
        list_folder();
        return;
      } catch (const ConfigError&) {  // a file
        files_[""] = place_.storage->open(place_.path)->size();
      }
      return;
    }
    list_folder();
  }
  void list_folder() {
    const std::size_t prefix = place_.path.empty() ? 0 : place_.path.size() + 1;
    for (const Entry& entry : place_.storage->list(place_.path, /*recursive=*/true)) {
      if (!entry.is_directory) files_[entry.path.substr(prefix)] = entry.bytes;
    }
  }

  [[nodiscard]] std::string path_of(const std::string& name) const {
    return name.empty() ? place_.path : join_path(place_.path, name);
  }

  void check(const std::string& name) {
    if (manifests_.contains(name)) return;
    if (const auto hash = hashes_.find(name); hash != hashes_.end()) {
      const std::string what = native::damage_of(*place_.storage, path_of(name), hash->second);
      if (!what.empty()) damaged(name, what);
      return;
    }
    const bool is_mark = name == native::kBeginFile || name == native::kDoneFile;
    if (found_.is_ours && is_mark) return;
    const File file = place_.storage->open(path_of(name));
    if (name == kDcpMetadataFile || name.ends_with(std::string("/") + kDcpMetadataFile))
      check_dcp(name.substr(0, name.size() - std::string_view(kDcpMetadataFile).size()));
    if (name.ends_with(".safetensors")) (void)SafetensorsReader(file);
    const bool is_entry = name.ends_with(".distcp");
    const bool is_torch = name.ends_with(".pt") || name.ends_with(".ckpt") || begins_as_zip(*file);
    if (!is_entry && (!is_torch || !check_zip(file)))
      found_.unseen.push_back(name.empty() ? place_.path : name);
  }

  /// Data files of DCP hold archives one after the other: `.metadata` says where. `folder` ends in
  /// '/', or is "".
  void check_dcp(const std::string& folder) {
    const std::string path =
        folder.empty() ? place_.path : path_of(folder.substr(0, folder.size() - 1));
    const DcpReader reader(place_.storage, path);
    std::map<std::string, File> open;
    bool all = true;
    const auto check = [&](const DcpPlace& place, const std::string& what) {
      const std::string name = folder + place.file;
      if (hashes_.contains(name)) return;
      if (!files_.contains(name)) return damaged(name, "is missing");
      File& file = open[name];
      if (!file) file = place_.storage->open(path_of(name));
      guarded(name, [&] {
        all &= check_zip(file_range(file, place.offset, place.length,
                                    file->name() + ", '" + terminal_line(what) + "'"));
      });
    };
    for (const auto& [key, tensor] : reader.metadata().tensors) {
      for (const DcpChunk& chunk : tensor.chunks) check(chunk.place, key);
    }
    for (const auto& [key, place] : reader.metadata().objects) check(place, key);
    if (all) return;
    for (const auto& [name, file] : open) found_.unseen.push_back(name);
  }

  void check_own_marks() {
    for (const char* mark : {native::kBeginFile, native::kDoneFile}) {
      if (const std::string problem = native::problem_of_mark(*place_.storage, place_.path, mark);
          !problem.empty())
        damaged(mark, problem);
    }
    check_torch_dist();
  }
  /// The half that a checkpoint has with dist_ckpt_format: torch_dist.
  void check_torch_dist() {
    std::set<std::string> iterations;
    for (const auto& [name, bytes] : files_) {
      if (name.starts_with("iter_")) iterations.insert(name.substr(0, name.find('/')));
    }
    const bool is_tracked = files_.contains(megatron::kTrackerFile);
    if (!is_tracked && !iterations.empty()) damaged(megatron::kTrackerFile, "is missing");
    if (is_tracked && iterations.empty())
      damaged("iter_…", std::string("is missing: ") + megatron::kTrackerFile + " names one");
    for (const std::string& iteration : iterations) {
      guarded(iteration,
              [&] { (void)megatron::MegatronSource({place_.storage, path_of(iteration)}); });
      if (!is_tracked) continue;
      const std::string step =
          place_.storage->read_text(path_of(megatron::kTrackerFile), /*most=*/64);
      if (!iteration.ends_with(step))
        damaged(megatron::kTrackerFile, "says " + terminal_line(step) + ", next to " + iteration);
    }
  }

  Place place_;
  FileCheck found_;
  std::map<std::string, native::StoredFile> hashes_;
  std::set<std::string> manifests_;
  std::map<std::string, std::int64_t> files_;  ///< bytes by name; "": the place is a file
};

}  // namespace

FileCheck check_files(const Place& place,
                      const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return Checker(place).run(progress);
}

void write_checksums(const Place& place) {
  const std::string path = join_path(place.path, native::kChecksumsFile);
  native::Manifest manifest;
  try {
    manifest = native::hash_folder(place);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string(error.what()) + "; a manifest is written into a folder");
  }
  place.storage->write_text(path, manifest.to_json());
}

}  // namespace trellis::checkpoint
