#include "trainer/files/checkpoint/storage/local_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/output_error.h"
#include "trainer/files/checkpoint/storage/local_file.h"
#include "trainer/files/checkpoint/storage/paths.h"

namespace trellis::checkpoint {
namespace {

namespace fs = std::filesystem;

std::optional<Entry> entry_of(const fs::path& path, std::string relative) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 && lstat(path.c_str(), &status) != 0) return std::nullopt;
  const bool directory = S_ISDIR(status.st_mode);
  return Entry{.path = std::move(relative),
               .is_directory = directory,
               .is_link = fs::is_symlink(path),
               .bytes = directory ? 0 : static_cast<std::int64_t>(status.st_size),
               .modified_ns = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                              status.st_mtim.tv_nsec};
}

class LocalStorage : public Storage {
 public:
  explicit LocalStorage(const std::string& root) : root_(fs::absolute(root)), address_(root) {}

  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] std::shared_ptr<const ReadableFile> open(const std::string& path) override {
    return std::make_shared<LocalReadableFile>(place(path));
  }
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path,
                                                     Durability durability) override {
    const fs::path file = place(path);
    if (path.empty() || fs::is_directory(file))
      throw OutputError(file.string() + ": cannot write: it is a folder");
    make_directories(parent_of(path));
    return std::make_unique<LocalWritableFile>(file, path, durability, shared_faults());
  }
  void sync() override;
  [[nodiscard]] std::vector<Entry> list(const std::string& directory, bool recursive) override;
  [[nodiscard]] bool exists(const std::string& path) override;
  void make_directories(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  std::int64_t remove_unfinished(const std::string& directory) override;

 private:
  [[nodiscard]] fs::path place(const std::string& path) const {
    check_relative_path(path, address_);
    return path.empty() ? root_ : root_ / path;
  }
  static void list_into(const fs::path& folder, const std::string& directory, bool recursive,
                        std::vector<Entry>& entries);
  void make_directory(const fs::path& folder, const std::string& relative);
  void remove_tree(const fs::path& folder, const std::string& path);

  fs::path root_;
  std::string address_;
};

void LocalStorage::sync() {
  faults().reach(FaultPoint::Kind::kSync, "");
  const int descriptor = ::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    if (errno == ENOENT) return;  // nothing was written
    throw OutputError(root_, errno);
  }
  const int failed = syncfs(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (failed != 0) throw OutputError(root_, failed);
}

void LocalStorage::list_into(const fs::path& folder, const std::string& directory, bool recursive,
                             std::vector<Entry>& entries) {
  std::error_code error;
  fs::directory_iterator items(folder, error), end;
  if (error)
    throw ConfigError(folder.string() + ": cannot list: " + error.message() +
                      "; expected a folder");
  for (; !error && items != end; items.increment(error)) {
    const fs::path& item = items->path();
    const std::string relative = join_path(directory, item.filename().string());
    const std::optional<Entry> entry = entry_of(item, relative);
    if (!entry) continue;  // removed meanwhile
    entries.push_back(*entry);
    if (recursive && entry->is_directory && !fs::is_symlink(item))
      list_into(item, relative, true, entries);
  }
  if (error) throw ConfigError(folder.string() + ": cannot list: " + error.message());
}

std::vector<Entry> LocalStorage::list(const std::string& directory, bool recursive) {
  std::vector<Entry> entries;
  list_into(place(directory), directory, recursive, entries);
  std::erase_if(entries, [](const Entry& entry) { return is_unfinished(entry.path); });
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.path < b.path; });
  return entries;
}

bool LocalStorage::exists(const std::string& path) {
  struct stat status{};
  if (stat(place(path).c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw ConfigError(place(path).string() + ": cannot look: " + std::strerror(errno));
}

void LocalStorage::make_directory(const fs::path& folder, const std::string& relative) {
  struct stat status{};
  if (stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  if (folder.has_relative_path()) make_directory(folder.parent_path(), parent_of(relative));
  faults().reach(FaultPoint::Kind::kMakeDirectory, relative);
  if (mkdir(folder.c_str(), 0777) != 0) {
    if (errno == EEXIST && stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
    throw OutputError(folder, errno);
  }
  sync_folder(folder.parent_path());
}

void LocalStorage::make_directories(const std::string& path) {
  const fs::path folder = place(path);
  make_directory(folder.has_filename() ? folder : folder.parent_path(), path);
}

void LocalStorage::remove_file(const std::string& path) {
  const fs::path file = place(path);
  faults().reach(FaultPoint::Kind::kDelete, path);
  if (unlink(file.c_str()) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return;
    throw OutputError(file, errno);
  }
  faults().reach(FaultPoint::Kind::kSync, parent_of(path));
  sync_folder(file.parent_path());
}

void LocalStorage::rename(const std::string& from, const std::string& to) {
  const fs::path target = place(to);
  faults().reach(FaultPoint::Kind::kRename, to);
  if (renameat2(AT_FDCWD, place(from).c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) != 0)
    throw OutputError(target, errno);
  sync_folder(target.parent_path());
}

void LocalStorage::remove_tree(const fs::path& folder, const std::string& path) {
  struct stat status{};
  if (lstat(folder.c_str(), &status) != 0) return;
  const bool directory = S_ISDIR(status.st_mode);
  if (directory) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator items(folder, error), end; !error && items != end;
         items.increment(error))
      names.push_back(items->path().filename().string());
    if (error && error.value() != ENOENT) throw OutputError(folder, error.value());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) remove_tree(folder / name, join_path(path, name));
  }
  faults().reach(FaultPoint::Kind::kDelete, path);
  if ((directory ? rmdir(folder.c_str()) : unlink(folder.c_str())) != 0 && errno != ENOENT)
    throw OutputError(folder, errno);
}

void LocalStorage::remove_directory(const std::string& path) { remove_tree(place(path), path); }

std::int64_t LocalStorage::remove_unfinished(const std::string& directory) {
  if (!exists(directory)) return 0;
  std::vector<Entry> entries;
  list_into(place(directory), directory, true, entries);
  std::int64_t removed = 0;
  for (const Entry& entry : entries) {
    if (entry.is_directory || !is_unfinished(entry.path) || fs::is_symlink(root_ / entry.path))
      continue;
    faults().reach(FaultPoint::Kind::kDelete, entry.path);
    const fs::path file = root_ / entry.path;
    if (unlink(file.c_str()) != 0 && errno != ENOENT) throw OutputError(file, errno);
    ++removed;
  }
  return removed;
}

}  // namespace

std::shared_ptr<Storage> open_local_storage(const std::string& root) {
  return std::make_shared<LocalStorage>(root);
}

}  // namespace trellis::checkpoint
