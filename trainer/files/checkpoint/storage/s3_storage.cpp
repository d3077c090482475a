#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arrow/buffer.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>

#include "base/error.h"
#include "base/output_error.h"
#include "trainer/files/checkpoint/storage/s3_request.h"
#include "trainer/files/checkpoint/storage/storage.h"

/// The S3 half of storage.h, over Arrow's S3 file system. A separate library: only programs that
/// meet an s3:// address load it.
namespace trellis::checkpoint {
namespace {

namespace afs = arrow::fs;

constexpr int kMostAttempts = 10;
constexpr std::int64_t kFirstPauseMs = 25, kLongestPauseMs = 20'000;
/// Given to Arrow at once, while the next one fills: what an upload holds in memory.
constexpr std::int64_t kUploadBytes = std::int64_t{64} << 20;

/// Doubles with each attempt; the share that is random halves.
std::int64_t pause_ms(std::int64_t attempts) {
  thread_local std::minstd_rand random(std::random_device{}());
  const double pause = static_cast<double>(
      std::min(kLongestPauseMs, kFirstPauseMs << std::min<std::int64_t>(attempts, 20)));
  const double share = 1.0 / static_cast<double>(1 << std::min<std::int64_t>(attempts, 20));
  return static_cast<std::int64_t>(pause *
                                   (1 + share * std::uniform_real_distribution<>()(random)));
}

class Retries : public afs::S3RetryStrategy {
 public:
  bool ShouldRetry(const AWSErrorDetail& error, std::int64_t attempted) override {
    return error.should_retry && attempted + 1 < kMostAttempts;
  }
  std::int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail&,
                                             std::int64_t attempted) override {
    return pause_ms(attempted);
  }
};

/// Ends S3 before the static objects of Arrow and the AWS SDK that exist by now: what is registered
/// last runs first, and they would otherwise be gone when S3 ends its threads.
void finalize_s3_at_exit() {
  std::atexit([] { (void)afs::EnsureS3Finalized(); });
}

void start_s3() {
  static const arrow::Status started = [] {
    afs::S3GlobalOptions options = afs::S3GlobalOptions::Defaults();
    options.log_level = afs::S3LogLevel::Off;  // retries that succeed are no news
    return afs::InitializeS3(options);
  }();
  if (!started.ok()) throw ConfigError("S3 cannot start: " + started.ToString());
}

std::string input_text(const std::string& name, const std::string& what,
                       const arrow::Status& status) {
  return name + ": cannot " + what + ": " + status.message() +
         "; check the address, the credentials and the network";
}
void check_input(const arrow::Status& status, const std::string& name, const std::string& what) {
  if (!status.ok()) throw ConfigError(input_text(name, what, status));
}
void check_output(const arrow::Status& status, const std::string& name, const std::string& what) {
  if (!status.ok()) throw OutputError(input_text(name, what, status));
}

class S3ReadableFile : public ReadableFile {
 public:
  S3ReadableFile(std::shared_ptr<arrow::io::RandomAccessFile> file, std::string name)
      : name_(std::move(name)), file_(std::move(file)) {
    const arrow::Result<std::int64_t> size = file_->GetSize();
    check_input(size.status(), name_, "ask for the size");
    size_ = *size;
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  /// A connection may end within an answer, which no retry of requests sees: what is missing is
  /// asked for again.
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    for (int attempt = 0; !into.empty();) {
      const arrow::Result<std::int64_t> count =
          file_->ReadAt(offset, static_cast<std::int64_t>(into.size()), into.data());
      if (count.ok() && *count > 0) {
        offset += *count;
        into = into.subspan(static_cast<std::size_t>(*count));
      } else if (++attempt < kMostAttempts) {
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms(attempt)));
      } else {
        throw ConfigError(input_text(
            name_, "read at offset " + std::to_string(offset),
            count.ok() ? arrow::Status::IOError("the object is shorter") : count.status()));
      }
    }
  }

 private:
  std::string name_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::int64_t size_ = 0;
};

class S3WritableFile : public WritableFile {
 public:
  S3WritableFile(std::shared_ptr<arrow::io::OutputStream> stream, std::string name,
                 std::string relative, std::shared_ptr<FaultPoints> faults)
      : stream_(std::move(stream)),
        name_(std::move(name)),
        relative_(std::move(relative)),
        faults_(std::move(faults)) {}
  /// Arrow's stream would complete the upload when it is destroyed.
  ~S3WritableFile() override {
    if (closed_) return;
    (void)stream_->Flush();  // a part that arrives after the end of its upload would stay
    (void)stream_->Abort();
  }
  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      if (!part_) start_part(static_cast<std::int64_t>(bytes.size()));
      const std::int64_t room = kUploadBytes - part_->size();
      const std::int64_t count = std::min(room, static_cast<std::int64_t>(bytes.size()));
      append(bytes.first(static_cast<std::size_t>(count)));
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      if (part_->size() == kUploadBytes) upload();
    }
  }
  void close() override {
    if (part_ && part_->size() > 0) upload();
    faults_->reach(FaultPoint::Kind::kUpload, relative_);
    check_output(stream_->Close(), name_, "complete the upload");
    closed_ = true;
  }

 private:
  void start_part(std::int64_t first) {
    arrow::Result<std::unique_ptr<arrow::ResizableBuffer>> buffer =
        arrow::AllocateResizableBuffer(0);
    check_output(buffer.status(), name_, "buffer");
    part_ = std::move(*buffer);
    check_output(part_->Reserve(std::min(first, kUploadBytes)), name_, "buffer");
  }
  void append(std::span<const std::byte> bytes) {
    const std::int64_t size = part_->size(), added = static_cast<std::int64_t>(bytes.size());
    if (part_->capacity() < size + added) {
      check_output(part_->Reserve(std::min(kUploadBytes, std::max(2 * size, size + added))), name_,
                   "buffer");
    }
    check_output(part_->Resize(size + added, false), name_, "buffer");
    std::copy(bytes.begin(), bytes.end(),
              reinterpret_cast<std::byte*>(part_->mutable_data()) + size);
  }
  /// Waits for what went before, so that at most two parts are in memory.
  void upload() {
    faults_->reach(FaultPoint::Kind::kUpload, relative_);
    check_output(stream_->Flush(), name_, "upload");
    check_output(stream_->Write(std::shared_ptr<arrow::Buffer>(std::move(part_))), name_, "upload");
    part_ = nullptr;
  }

  std::shared_ptr<arrow::io::OutputStream> stream_;
  std::string name_, relative_;
  std::shared_ptr<FaultPoints> faults_;
  std::unique_ptr<arrow::ResizableBuffer> part_;
  bool closed_ = false;
};

class S3Storage : public Storage {
 public:
  explicit S3Storage(const std::string& address) {
    address_ = address.substr(0, address.find('?'));
    start_s3();
    std::string path;
    const arrow::Result<afs::S3Options> made = afs::S3Options::FromUriAndOptions(
        address,
        {{"retry_strategy", std::shared_ptr<afs::S3RetryStrategy>(std::make_shared<Retries>())}},
        &path);
    check_input(made.status(), address_, "understand the address");
    afs::S3Options options = *made;
    options.allow_delayed_open = true;
    options.background_writes = true;
    const arrow::Result<std::shared_ptr<afs::S3FileSystem>> system =
        afs::S3FileSystem::Make(options);
    static std::once_flag made_first;
    std::call_once(made_first, &finalize_s3_at_exit);
    check_input(system.status(), address_, "reach S3");
    files_ = *system;
    while (path.ends_with('/')) path.pop_back();
    if (path.empty()) throw ConfigError(address_ + ": expected s3://bucket/prefix");
    root_ = path;
  }

  ~S3Storage() override {
    files_.reset();
    static std::once_flag gone_first;
    std::call_once(gone_first, &finalize_s3_at_exit);  // requests made more static objects
  }

  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] std::shared_ptr<const ReadableFile> open(const std::string& path) override {
    const std::string place = this->place(path);
    auto file = files_->OpenInputFile(place);
    check_input(file.status(), "s3://" + place, "read");
    return std::make_shared<S3ReadableFile>(*file, "s3://" + place);
  }
  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path,
                                                     Durability /*always*/) override {
    const std::string place = this->place(path);
    faults().reach(FaultPoint::Kind::kUpload, path);
    auto stream = files_->OpenOutputStream(place, nullptr);
    check_output(stream.status(), "s3://" + place, "write");
    return std::make_unique<S3WritableFile>(*stream, "s3://" + place, path, shared_faults());
  }
  void sync() override {}
  [[nodiscard]] std::vector<Entry> list(const std::string& directory, bool recursive) override;
  [[nodiscard]] bool exists(const std::string& path) override { return type(path) != kNothing; }
  void make_directories(const std::string& path) override { (void)place(path); }
  void remove_file(const std::string& path) override {
    const std::string place = this->place(path);
    faults().reach(FaultPoint::Kind::kDelete, path);
    if (type(path) == afs::FileType::File)
      check_output(files_->DeleteFile(place), "s3://" + place, "delete");
  }
  void remove_directory(const std::string& path) override {
    const std::string place = this->place(path);
    faults().reach(FaultPoint::Kind::kDelete, path);
    if (type(path) == afs::FileType::File)
      check_output(files_->DeleteFile(place), "s3://" + place, "delete");
    else if (place.find('/') == std::string::npos)  // the bucket itself stays
      check_output(files_->DeleteDirContents(place, true), "s3://" + place, "delete");
    else if (type(path) != kNothing)
      check_output(files_->DeleteDir(place), "s3://" + place, "delete");
  }
  void rename(const std::string& from, const std::string& to) override {
    const auto move = [&](const std::string& path, const std::string& target) {
      check_output(files_->Move(place(path), place(target)), "s3://" + place(path), "rename");
    };
    faults().reach(FaultPoint::Kind::kRename, to);
    if (type(from) == afs::FileType::File) return move(from, to);
    for (const Entry& entry : list(from, /*recursive=*/true)) {
      if (!entry.is_directory) move(entry.path, to + entry.path.substr(from.size()));
    }
    remove_directory(from);
  }
  std::int64_t remove_unfinished(const std::string& directory) override {
    (void)place(directory);
    return 0;
  }

 private:
  static constexpr afs::FileType kNothing = afs::FileType::NotFound;
  [[nodiscard]] std::string place(const std::string& path) const {
    check_relative_path(path, address_);
    return join_path(root_, path);
  }
  [[nodiscard]] afs::FileType type(const std::string& path) const {
    const std::string place = this->place(path);
    const arrow::Result<afs::FileInfo> info = files_->GetFileInfo(place);
    check_input(info.status(), "s3://" + place, "look");
    return info->type();
  }

  std::shared_ptr<afs::S3FileSystem> files_;
  std::string address_, root_;  ///< root_: bucket/prefix
};

std::vector<Entry> S3Storage::list(const std::string& directory, bool recursive) {
  afs::FileSelector selector;
  selector.base_dir = place(directory);
  selector.recursive = recursive;
  selector.allow_not_found = true;
  const auto found = files_->GetFileInfo(selector);
  check_input(found.status(), "s3://" + selector.base_dir, "list");
  std::vector<Entry> entries;
  for (const afs::FileInfo& info : *found) {
    if (!info.IsFile() && !info.IsDirectory()) continue;
    const bool dated = info.mtime() != afs::kNoTime;
    entries.push_back({.path = info.path().substr(root_.size() + 1),
                       .is_directory = info.IsDirectory(),
                       .bytes = info.IsFile() ? info.size() : 0,
                       .modified_ns = dated ? info.mtime().time_since_epoch().count() : 0});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.path < b.path; });
  return entries;
}

}  // namespace
}  // namespace trellis::checkpoint

extern "C" __attribute__((visibility("default"))) void trellis_open_s3_storage(
    const std::string& address, std::shared_ptr<trellis::checkpoint::Storage>& storage) {
  storage = std::make_shared<trellis::checkpoint::S3Storage>(address);
}
