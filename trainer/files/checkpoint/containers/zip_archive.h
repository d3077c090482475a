#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/files/checkpoint/storage/storage.h"

/// The zip archives of torch.save: records are stored uncompressed, from front to back, and their
/// data begin at multiples of 64 bytes. Zip libraries either seek back to patch headers, which an
/// upload cannot, or without the alignment; LibTorch's own writer needs each record in memory.
namespace trellis::checkpoint {

struct ZipRecord {
  std::string name;
  std::int64_t size = 0;           ///< bytes
  std::int64_t header_offset = 0;  ///< of its local header
  std::uint32_t crc32 = 0;         ///< 0: not computed, as PyTorch writes it on request
};

/// Reads the directory of an archive; data are read from the file itself.
class ZipReader {
 public:
  /// Throws ConfigError that names the file: no zip, a cut or damaged directory, compressed or
  /// encrypted records, a name that occurs twice or leaves the archive's folder.
  explicit ZipReader(std::shared_ptr<const ReadableFile> file);
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }
  [[nodiscard]] const ZipRecord* find(const std::string& name) const;
  /// Offset in the file of a record's first byte. Throws ConfigError when the record leaves the
  /// file.
  [[nodiscard]] std::int64_t data_offset(const ZipRecord& record) const;
  /// The content of a small record; its checksum is checked.
  [[nodiscard]] std::vector<std::byte> read(const ZipRecord& record) const;
  /// Reads the record and throws ConfigError when its checksum differs; one without a checksum
  /// passes.
  void check(const ZipRecord& record) const;

 private:
  struct Directory {
    std::uint64_t offset = 0, size = 0, records = 0;
  };
  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] Directory find_directory() const;
  [[nodiscard]] std::string bytes(std::uint64_t offset, std::uint64_t size) const;
  void read_records(const Directory& directory);
  [[nodiscard]] ZipRecord parse_record(std::string_view header, std::string_view name,
                                       std::string_view extra) const;

  std::shared_ptr<const ReadableFile> file_;
  std::vector<ZipRecord> records_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::uint64_t end_of_data_ = 0;  ///< where the directory begins
};

/// CRC-32 of zip. `crc`: of what came before, 0 at the start.
[[nodiscard]] std::uint32_t zip_crc32(std::uint32_t crc, std::span<const std::byte> bytes);

/// Writes an archive from front to back.
class ZipWriter {
 public:
  explicit ZipWriter(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  /// Data of `size` bytes follow by write(). REQUIRES: the record before is complete.
  void begin(const std::string& name, std::int64_t size);
  void write(std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view content);
  /// Writes the directory and closes the file.
  void finish();
  /// Bytes of the current record that are still to come.
  [[nodiscard]] std::int64_t missing() const { return missing_; }

 private:
  void end();
  void put(std::string_view text);

  std::unique_ptr<WritableFile> file_;
  std::vector<ZipRecord> records_;
  std::int64_t position_ = 0, missing_ = 0;
  bool open_ = false;
};

}  // namespace trellis::checkpoint
