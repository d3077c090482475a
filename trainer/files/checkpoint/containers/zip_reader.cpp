#include <libdeflate.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"
#include "trainer/files/checkpoint/containers/zip_format.h"

namespace trellis::checkpoint {
namespace {

using zip::get;

/// A comment at the end of an archive has at most 65535 bytes; PyTorch writes none.
constexpr std::uint64_t kShortTail = 512, kLongTail = 65535 + 512;

}  // namespace

std::uint32_t zip_crc32(std::uint32_t crc, std::span<const std::byte> bytes) {
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
}

ZipReader::ZipReader(std::shared_ptr<const ReadableFile> file) : file_(std::move(file)) {
  read_records(find_directory());
}

void ZipReader::fail(const std::string& what) const {
  throw ConfigError(file_->name() + ": " + what);
}

std::string ZipReader::bytes(std::uint64_t offset, std::uint64_t size) const {
  const auto all = static_cast<std::uint64_t>(file_->size());
  if (offset > all || size > all - offset) fail("zip: a part leaves the file: cut off or damaged");
  std::string text(size, '\0');
  file_->read(static_cast<std::int64_t>(offset), std::as_writable_bytes(std::span(text)));
  return text;
}

ZipReader::Directory ZipReader::find_directory() const {
  const auto all = static_cast<std::uint64_t>(file_->size());
  for (const std::uint64_t most : {kShortTail, kLongTail}) {
    const std::uint64_t begin = all - std::min(all, most);
    const std::string tail = bytes(begin, all - begin);
    if (tail.size() < zip::kEndBytes) break;
    for (std::size_t at = tail.size() - zip::kEndBytes + 1; at-- > 0;) {
      if (get(tail, at, 4) != zip::kEnd) continue;
      Directory directory{.offset = get(tail, at + 16, 4),
                          .size = get(tail, at + 12, 4),
                          .records = get(tail, at + 10, 2)};
      const bool located =
          at >= zip::kLocator64Bytes && get(tail, at - zip::kLocator64Bytes, 4) == zip::kLocator64;
      if (!located) return directory;
      const std::uint64_t end64 = get(tail, at - zip::kLocator64Bytes + 8, 8);
      const std::string record = bytes(end64, zip::kEnd64Bytes);
      if (get(record, 0, 4) != zip::kEnd64) fail("zip: damaged zip64 end of the directory");
      return {
          .offset = get(record, 48, 8), .size = get(record, 40, 8), .records = get(record, 32, 8)};
    }
    if (begin == 0) break;
  }
  fail("zip: no directory at the end: the file is cut off, damaged or of another format");
}

ZipRecord ZipReader::parse_record(std::string_view header, std::string_view name,
                                  std::string_view extra) const {
  const std::string shown = "zip record '" + terminal_line(name) + "'";
  if ((get(header, 8, 2) & zip::kEncrypted) != 0) fail(shown + " is encrypted");
  if (get(header, 10, 2) != 0)
    fail(shown + " is compressed; expected an archive of torch.save, which stores");
  std::uint64_t stored = get(header, 20, 4), size = get(header, 24, 4), at = get(header, 42, 4);
  for (std::size_t i = 0; i + 4 <= extra.size();) {
    const std::size_t length = get(extra, i + 2, 2), end = i + 4 + length;
    if (end > extra.size()) break;
    if (get(extra, i, 2) == zip::kZip64Field) {
      std::size_t next = i + 4;
      for (std::uint64_t* value : {&size, &stored, &at}) {
        if (*value != zip::k32) continue;
        if (next + 8 > end) fail(shown + ": a zip64 field is cut off");
        *value = get(extra, next, 8);
        next += 8;
      }
    }
    i = end;
  }
  if (stored != size) fail(shown + " has two sizes");
  if (size > end_of_data_ || at > end_of_data_ - size) fail(shown + " leaves the file");
  return {.name = std::string(name),
          .size = static_cast<std::int64_t>(size),
          .header_offset = static_cast<std::int64_t>(at),
          .crc32 = static_cast<std::uint32_t>(get(header, 16, 4))};
}

void ZipReader::read_records(const Directory& directory) {
  if (directory.records > directory.size / zip::kCentralHeaderBytes)
    fail("zip: " + std::to_string(directory.records) + " records in a directory of " +
         std::to_string(directory.size) + " bytes");
  const std::string all = bytes(directory.offset, directory.size);
  end_of_data_ = directory.offset;
  records_.reserve(directory.records);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.records; ++i) {
    if (at + zip::kCentralHeaderBytes > all.size() || get(all, at, 4) != zip::kCentralHeader)
      fail("zip: record " + std::to_string(i) + " of the directory is damaged");
    const std::string_view header = std::string_view(all).substr(at, zip::kCentralHeaderBytes);
    const std::size_t name = get(header, 28, 2), extra = get(header, 30, 2),
                      comment = get(header, 32, 2);
    at += zip::kCentralHeaderBytes;
    if (name + extra + comment > all.size() - at) fail("zip: the directory is cut off");
    records_.push_back(parse_record(header, std::string_view(all).substr(at, name),
                                    std::string_view(all).substr(at + name, extra)));
    at += name + extra + comment;
    const std::string& added = records_.back().name;
    check_relative_path(added.ends_with('/') ? added.substr(0, added.size() - 1) : added,
                        file_->name() + ": zip record");
    if (added.empty() || !by_name_.emplace(added, records_.size() - 1).second)
      fail("zip record '" + terminal_line(added) + "' occurs twice, or has no name");
  }
}

const ZipRecord* ZipReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &records_[found->second];
}

std::int64_t ZipReader::data_offset(const ZipRecord& record) const {
  const std::string shown = "zip record '" + terminal_line(record.name) + "'";
  const auto begin = static_cast<std::uint64_t>(record.header_offset);
  const std::string header = bytes(begin, zip::kLocalHeaderBytes);
  const std::size_t name = get(header, 26, 2), extra = get(header, 28, 2);
  const std::uint64_t data = begin + zip::kLocalHeaderBytes + name + extra;
  if (get(header, 0, 4) != zip::kLocalHeader) fail(shown + ": its header is damaged");
  if (data > end_of_data_ || static_cast<std::uint64_t>(record.size) > end_of_data_ - data)
    fail(shown + " leaves the file");
  // The fields say where the data begin: a damaged one would shift them.
  const std::string rest = bytes(begin + zip::kLocalHeaderBytes, name + extra);
  std::size_t at = name;
  while (at + 4 <= rest.size()) at += 4 + get(rest, at + 2, 2);
  if (rest.compare(0, name, record.name) != 0 || at != rest.size())
    fail(shown + ": its header is damaged");
  return static_cast<std::int64_t>(data);
}

void ZipReader::check(const ZipRecord& record) const {
  const std::int64_t begin = data_offset(record);
  std::uint32_t crc = 0;
  read_pieces(*file_, begin, begin + record.size, nullptr,
              [&](std::span<const std::byte> piece) { crc = zip_crc32(crc, piece); });
  if (record.crc32 != 0 && crc != record.crc32)
    fail("zip record '" + terminal_line(record.name) + "': the checksum differs: damaged");
}

std::vector<std::byte> ZipReader::read(const ZipRecord& record) const {
  const std::int64_t offset = data_offset(record);
  std::vector<std::byte> content(static_cast<std::size_t>(record.size));
  file_->read(offset, content);
  if (record.crc32 != 0 && zip_crc32(0, content) != record.crc32)
    fail("zip record '" + terminal_line(record.name) + "': the checksum differs: damaged");
  return content;
}

}  // namespace trellis::checkpoint
