#include "base/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ranges>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "base/files/file_lock.h"
#include "base/output_error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const fs::path& path, const std::string& reason) {
  throw ConfigError(path.string() + ": cannot write here: " + reason + "; choose another place");
}

/// The file that the path refers to: renaming over a symbolic link would replace the link.
fs::path target_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

void remove_all_empty(const std::vector<fs::path>& folders) {
  std::error_code ignored;
  for (const fs::path& folder : std::views::reverse(folders)) fs::remove(folder, ignored);
}

/// Creates `folder`. Returns what was not there, outermost first.
std::vector<fs::path> create_folders(const fs::path& path, const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, error) && !error; at = at.parent_path())
    missing.insert(missing.begin(), at);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    fs::create_directory(missing[i], error);
    if (!error) continue;
    missing.resize(i);
    remove_all_empty(missing);
    cannot_write(path, "folder " + folder.string() + ": " + error.message());
  }
  return missing;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(target_of(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::is_directory(status)) cannot_write(path_, std::strerror(EISDIR));
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    stream_.emplace(path_, FileStream::Mode::kAppend);
    return;
  }
  created_folders_ = create_folders(path_, path_.parent_path());
  try {
    open_partial();
  } catch (const std::system_error& failure) {
    remove_all_empty(created_folders_);
    cannot_write(path_, failure.code().message());
  }
}

void AtomicFile::open_partial() {
  std::optional<FileLock> lock;
  for (int other_writers = 0; !lock; ++other_writers) {
    partial_ = path_;
    if (other_writers > 0) partial_ += "." + std::to_string(other_writers);
    partial_ += ".partial";
    lock = FileLock::try_lock(partial_);
  }
  // A writer that was killed may have left content there. Only then: after a truncation to nothing
  // ext4 writes a file to the disk when it is closed.
  struct stat status{};
  if (::fstat(lock->descriptor(), &status) != 0 ||
      (status.st_size != 0 && ::ftruncate(lock->descriptor(), 0) != 0))
    throw std::system_error(errno, std::generic_category());
  stream_.emplace(path_, lock->release());
  under_way_.emplace(partial_);
}

AtomicFile::~AtomicFile() {
  if (committed_ || partial_.empty()) return;
  std::error_code ignored;
  fs::remove(partial_, ignored);  // before the stream, and with it the lock, ends
  remove_all_empty(created_folders_);
}

void AtomicFile::commit(Durability durability) {
  TRELLIS_CHECK(!committed_, "commit() called twice for " + path_.string());
  stream_->check();
  if (!partial_.empty()) {
    // Without it a power cut after the rename could leave a complete name with no content.
    if (durability == Durability::kPowerCut) stream_->sync_to_disk();
    std::error_code error;
    fs::rename(partial_, path_, error);
    if (error) throw OutputError(path_, error.value());
  }
  committed_ = true;
  under_way_.reset();
}

void write_file_atomically(const fs::path& path, std::string_view content,
                           AtomicFile::Durability durability) {
  AtomicFile file(path);
  file.stream().write(content.data(), static_cast<std::streamsize>(content.size()));
  file.commit(durability);
}

}  // namespace trellis
