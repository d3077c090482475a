#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/files/checkpoint/storage/fault_points.h"

/// Where checkpoints lie: a folder of the local file system, or a prefix of an S3 bucket. Knows
/// nothing of formats or models.
namespace trellis::checkpoint {

/// An open file of fixed content. All members are safe to call from several threads at once.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  /// Address of the file, for error texts.
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Bytes.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Fills `into` with the bytes from `offset` on. Throws ConfigError that names the file and the
  /// offset when the file ends before, or when the place fails.
  virtual void read(std::int64_t offset, std::span<std::byte> into) const = 0;
};

/// Throws ConfigError that names the file and the offset when the range leaves the file.
void check_range(const ReadableFile& file, std::int64_t offset, std::size_t length);

/// `length` bytes of `file` from `offset` on, as a separate file; its errors contain `name`.
/// Throws ConfigError when the range leaves the file.
[[nodiscard]] std::shared_ptr<const ReadableFile> file_range(
    std::shared_ptr<const ReadableFile> file, std::int64_t offset, std::int64_t length,
    std::string name);
/// A file in memory.
[[nodiscard]] std::shared_ptr<const ReadableFile> file_in_memory(std::vector<std::byte> content,
                                                                 std::string name);

/// A new file, written from front to back. It appears under its name at close(), complete, and
/// replaces an older one; destroyed without close() nothing appears and nothing is left.
/// Local: written under a temporary name; close() writes it to the disk (fsync), renames it and
/// writes the folder to the disk. S3: a multipart upload, completed at close(). One thread at a
/// time.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Throws OutputError with the file and the system's reason, such as a full disk.
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Called once; throws as write().
  virtual void close() = 0;
};

struct Entry {
  std::string path;              ///< relative to the storage's root, with '/'
  bool is_directory = false;     ///< of a link: what it names
  bool is_link = false;          ///< a symbolic one
  std::int64_t bytes = 0;        ///< 0 for a folder
  std::int64_t modified_ns = 0;  ///< since 1970-01-01 UTC; 0 where the place does not tell

  friend bool operator==(const Entry&, const Entry&) = default;
};

/// When a written file survives a power cut. kAtSync: at the next Storage::sync(), which is far
/// cheaper for thousands of small files; until then a power cut may leave it empty or absent.
enum class Durability { kAtClose, kAtSync };

/// Bytes [offset, end) of a file, piece by piece: each goes to `take` and, unless `into` is null,
/// one after the other to there.
void read_pieces(const ReadableFile& file, std::int64_t offset, std::int64_t end, std::byte* into,
                 const std::function<void(std::span<const std::byte> piece)>& take);

/// A root folder or prefix. Paths are relative to it, with '/', and "" is the root itself; a path
/// that is absolute, has a part "..", "." or "", a backslash or a NUL is a ConfigError. Symbolic
/// links are followed, also out of the root: they are the user's. Errors name the full address. All
/// members are safe to call from several threads at once.
class Storage {
 public:
  Storage() = default;
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// As open_storage was given it, without a query.
  [[nodiscard]] virtual const std::string& address() const = 0;

  /// Throws ConfigError when there is no such file.
  [[nodiscard]] virtual std::shared_ptr<const ReadableFile> open(const std::string& path) = 0;
  /// Missing folders on the way are made. Throws OutputError.
  [[nodiscard]] virtual std::unique_ptr<WritableFile> create(
      const std::string& path, Durability durability = Durability::kAtClose) = 0;
  /// Everything that was closed before survives a power cut when it returns. Throws OutputError.
  virtual void sync() = 0;
  /// Lists the content of a folder, sorted by path (bytewise); `recursive`: at every depth.
  /// Unfinished files (is_unfinished) are not listed. Throws ConfigError when there is no such
  /// folder; in S3 a folder that holds nothing is empty.
  [[nodiscard]] virtual std::vector<Entry> list(const std::string& directory, bool recursive) = 0;
  /// True if the file or folder exists. Throws ConfigError when the storage cannot be accessed.
  [[nodiscard]] virtual bool exists(const std::string& path) = 0;
  /// S3 has no folders: does nothing there.
  virtual void make_directories(const std::string& path) = 0;
  /// No error when there is none. It does not come back after a power cut. Throws OutputError.
  virtual void remove_file(const std::string& path) = 0;
  /// Removes a folder with its content, also unfinished files; no error when there is none. A
  /// symbolic link is removed itself, not what it names. Throws OutputError.
  virtual void remove_directory(const std::string& path) = 0;
  /// A file or folder gets another name, which nothing has yet. S3: object after object. Throws
  /// OutputError.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Removes the unfinished files that killed writers left in `directory`, at every depth, and
  /// returns their number. REQUIRES: no one writes there. S3: unfinished uploads are invisible; a
  /// rule of the bucket removes them; returns 0.
  virtual std::int64_t remove_unfinished(const std::string& directory) = 0;

  /// The content; throws ConfigError when it is longer than `most` bytes.
  [[nodiscard]] std::string read_text(const std::string& path,
                                      std::int64_t most = std::int64_t{256} << 20);
  void write_text(const std::string& path, std::string_view text);

  /// For tests: see fault_points.h.
  [[nodiscard]] FaultPoints& faults() const { return *faults_; }

 protected:
  [[nodiscard]] const std::shared_ptr<FaultPoints>& shared_faults() const { return faults_; }

 private:
  std::shared_ptr<FaultPoints> faults_ = std::make_shared<FaultPoints>();
};

/// How long ranks wait for one that reads or writes a checkpoint. Storage reports its own failures;
/// a large save to a slow place is none.
inline constexpr std::chrono::hours kStorageTimeout{24};

/// True if `path` names a file that was being written when its writer was killed.
[[nodiscard]] bool is_unfinished(std::string_view path);

/// Throws ConfigError unless `path` is one that Storage takes; the error contains `where`. Readers
/// of formats check names in files with it before they open them.
void check_relative_path(const std::string& path, const std::string& where);

/// `folder` + '/' + `name`; "" is the root.
[[nodiscard]] std::string join_path(const std::string& folder, const std::string& name);

}  // namespace trellis::checkpoint
