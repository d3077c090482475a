#include "trainer/files/checkpoint/formats/native/checksums.h"

#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::native {
namespace {

/// Hands everything to another storage, and hashes files below `folder` when they are opened.
class CheckedStorage final : public Storage {
 public:
  CheckedStorage(std::shared_ptr<Storage> storage, std::string folder, Manifest manifest)
      : storage_(std::move(storage)), folder_(std::move(folder)), manifest_(std::move(manifest)) {}

  [[nodiscard]] const std::string& address() const override { return storage_->address(); }
  [[nodiscard]] std::shared_ptr<const ReadableFile> open(const std::string& path) override {
    auto file = storage_->open(path);
    if (path.starts_with(folder_)) check(path.substr(folder_.size()), file);
    return file;
  }
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path,
                                                     Durability durability) override {
    return storage_->create(path, durability);
  }
  void sync() override { storage_->sync(); }
  [[nodiscard]] std::vector<Entry> list(const std::string& directory, bool recursive) override {
    return storage_->list(directory, recursive);
  }
  [[nodiscard]] bool exists(const std::string& path) override { return storage_->exists(path); }
  void make_directories(const std::string& path) override { storage_->make_directories(path); }
  void remove_file(const std::string& path) override { storage_->remove_file(path); }
  void remove_directory(const std::string& path) override { storage_->remove_directory(path); }
  void rename(const std::string& from, const std::string& to) override {
    storage_->rename(from, to);
  }
  std::int64_t remove_unfinished(const std::string& directory) override {
    return storage_->remove_unfinished(directory);
  }

 private:
  void check(const std::string& name, const std::shared_ptr<const ReadableFile>& file) {
    const auto known = manifest_.files.find(name);
    if (known == manifest_.files.end())
      throw ConfigError(file->name() + ": is not in " + kChecksumsFile +
                        ": it came later; write that again with `trellis checkpoint verify "
                        "--write-manifest`, or remove one of the two");
    const std::scoped_lock lock(mutex_);
    if (checked_.contains(name)) return;
    if (hash_file(*file) != known->second)
      throw ConfigError(file->name() + ": is not what " + kChecksumsFile + " says: expected " +
                        std::to_string(known->second.bytes) + " bytes with XXH3-128 " +
                        known->second.xxh3_128 +
                        ": the file is damaged or was changed; use another copy of it");
    checked_.insert(name);
  }

  std::shared_ptr<Storage> storage_;
  std::string folder_;
  Manifest manifest_;
  std::mutex mutex_;
  std::set<std::string> checked_;
};

}  // namespace

Manifest hash_folder(const Place& place) {
  Manifest manifest;
  const std::size_t prefix = place.path.empty() ? 0 : place.path.size() + 1;
  for (const Entry& entry : place.storage->list(place.path, /*recursive=*/true)) {
    const std::string name = entry.path.substr(prefix);
    if (entry.is_directory || name == kChecksumsFile || name == kManifestFile) continue;
    manifest.files[name] = hash_file(*place.storage->open(entry.path));
  }
  return manifest;
}

Place with_checksums(Place place) {
  const bool is_wrapped = dynamic_cast<CheckedStorage*>(place.storage.get()) != nullptr;
  if (is_wrapped || !place.has(kChecksumsFile)) return place;
  const std::string path = join_path(place.path, kChecksumsFile);
  Manifest manifest = Manifest::from_json(place.storage->read_text(path),
                                          join_path(place.storage->address(), path));
  const std::string folder = place.path.empty() ? "" : place.path + "/";
  place.storage =
      std::make_shared<CheckedStorage>(std::move(place.storage), folder, std::move(manifest));
  return place;
}

std::string damage_of(Storage& storage, const std::string& path, const StoredFile& expected) {
  if (!storage.exists(path)) return "is missing";
  const StoredFile got = hash_file(*storage.open(path));
  if (got.bytes != expected.bytes)
    return "expected " + std::to_string(expected.bytes) + " bytes, got " +
           std::to_string(got.bytes);
  if (got.xxh3_128 != expected.xxh3_128)
    return "expected the checksum " + expected.xxh3_128 + ", got " + got.xxh3_128;
  return "";
}

}  // namespace trellis::checkpoint::native
