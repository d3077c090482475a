#include "trainer/files/checkpoint/storage/local_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/output_error.h"
#include "trainer/files/checkpoint/storage/paths.h"
#include "trainer/files/checkpoint/storage/s3_request.h"

namespace trellis::checkpoint {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;
/// Writing to the disk starts early, so that fsync at the end has little left to do.
constexpr std::int64_t kStartWriting = std::int64_t{32} << 20;
constexpr std::size_t kMostPerCall = std::size_t{1} << 30;

}  // namespace

LocalReadableFile::LocalReadableFile(const std::filesystem::path& path)
    : name_(path.string()), file_(path) {}

void LocalReadableFile::read(std::int64_t offset, std::span<std::byte> into) const {
  check_range(*this, offset, into.size());
  while (!into.empty()) {
    const ssize_t count =
        pread(file_.descriptor(), into.data(), std::min(into.size(), kMostPerCall), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw ConfigError(name_ + ": cannot read at offset " + std::to_string(offset) + ": " +
                        (count < 0 ? std::strerror(errno) : "the file became shorter"));
    }
    offset += count;
    into = into.subspan(static_cast<std::size_t>(count));
  }
}

LocalWritableFile::LocalWritableFile(std::filesystem::path path, std::string relative,
                                     Durability durability, std::shared_ptr<FaultPoints> faults)
    : path_(std::move(path)),
      unfinished_(unfinished_name(path_.string())),
      relative_(std::move(relative)),
      durability_(durability),
      faults_(std::move(faults)) {
  faults_->reach(FaultPoint::Kind::kWrite, relative_);
  descriptor_ = open(unfinished_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw OutputError(path_, errno);
}

LocalWritableFile::~LocalWritableFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (renamed_) return;
  try {
    faults_->reach(FaultPoint::Kind::kDelete, relative_);
    ::unlink(unfinished_.c_str());
  } catch (...) {  // the end of the process, played by a test: what is there stays
  }
}

void LocalWritableFile::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    faults_->reach(FaultPoint::Kind::kWrite, relative_);
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMostPerCall));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw OutputError(path_, errno);
    written_ += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (durability_ == Durability::kAtClose && written_ - started_ >= kStartWriting) {
    sync_file_range(descriptor_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = written_;
  }
}

void LocalWritableFile::flush() {
  put(buffer_);
  buffer_.clear();
}

void LocalWritableFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() >= kBuffer) return put(bytes);
  if (buffer_.capacity() < buffer_.size() + bytes.size() && !buffer_.empty())
    buffer_.reserve(kBuffer);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void LocalWritableFile::close() {
  flush();
  if (durability_ == Durability::kAtClose) {
    faults_->reach(FaultPoint::Kind::kSync, relative_);
    if (fsync(descriptor_) != 0) throw OutputError(path_, errno);
  }
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) throw OutputError(path_, errno);
  faults_->reach(FaultPoint::Kind::kRename, relative_);
  if (std::rename(unfinished_.c_str(), path_.c_str()) != 0) throw OutputError(path_, errno);
  renamed_ = true;
  if (durability_ == Durability::kAtClose) {
    faults_->reach(FaultPoint::Kind::kSync, parent_of(relative_));
    sync_folder(path_.parent_path());
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw OutputError(folder, errno);
  const int failed = fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (failed != 0 && failed != EINVAL)
    throw OutputError(folder, failed);  // EINVAL: cannot, need not
}

}  // namespace trellis::checkpoint
