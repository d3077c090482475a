#include <utility>

#include "base/check.h"
#include "trainer/files/checkpoint/containers/zip_archive.h"
#include "trainer/files/checkpoint/containers/zip_format.h"

namespace trellis::checkpoint {
namespace {

bool needs_64(std::int64_t value) { return value >= static_cast<std::int64_t>(zip::k32); }

std::uint64_t field_32(std::int64_t value) {
  return needs_64(value) ? zip::k32 : static_cast<std::uint64_t>(value);
}

/// Zip64 sizes, and a field of padding up to the alignment of the data.
std::string local_extra(std::int64_t position, const std::string& name, std::int64_t size) {
  std::string extra;
  if (needs_64(size)) {
    zip::put(extra, zip::kZip64Field, 2);
    zip::put(extra, 16, 2);
    zip::put(extra, static_cast<std::uint64_t>(size), 8);
    zip::put(extra, static_cast<std::uint64_t>(size), 8);
  }
  const std::int64_t begin =
      position + static_cast<std::int64_t>(zip::kLocalHeaderBytes + name.size() + extra.size() + 4);
  const auto padding = static_cast<std::size_t>(-begin & (zip::kAlignment - 1));
  zip::put(extra, zip::kPaddingField, 2);
  zip::put(extra, padding, 2);
  return extra + std::string(padding, 'Z');
}

std::string local_header(const ZipRecord& record) {
  const std::string extra = local_extra(record.header_offset, record.name, record.size);
  std::string header;
  zip::put(header, zip::kLocalHeader, 4);
  zip::put(header, needs_64(record.size) ? 45 : 20, 2);
  zip::put(header, zip::kFlags, 2);
  // Stored, no time, checksum and sizes after the data; with zip64 the sizes refer to the field.
  zip::put(header, 0, 8), zip::put(header, 0, 2);
  zip::put(header, needs_64(record.size) ? zip::k32 : 0, 4);
  zip::put(header, needs_64(record.size) ? zip::k32 : 0, 4);
  zip::put(header, record.name.size(), 2);
  zip::put(header, extra.size(), 2);
  return header + record.name + extra;
}

std::string central_header(const ZipRecord& record) {
  std::string wide;
  if (needs_64(record.size)) {
    zip::put(wide, static_cast<std::uint64_t>(record.size), 8);
    zip::put(wide, static_cast<std::uint64_t>(record.size), 8);
  }
  if (needs_64(record.header_offset))
    zip::put(wide, static_cast<std::uint64_t>(record.header_offset), 8);
  std::string extra;
  if (!wide.empty()) {
    zip::put(extra, zip::kZip64Field, 2);
    zip::put(extra, wide.size(), 2);
    extra += wide;
  }
  const std::uint64_t version = wide.empty() ? 20 : 45;
  std::string header;
  zip::put(header, zip::kCentralHeader, 4);
  zip::put(header, version, 2);
  zip::put(header, version, 2);
  zip::put(header, zip::kFlags, 2);
  zip::put(header, 0, 2 + 4);
  zip::put(header, record.crc32, 4);
  zip::put(header, field_32(record.size), 4);
  zip::put(header, field_32(record.size), 4);
  zip::put(header, record.name.size(), 2);
  zip::put(header, extra.size(), 2);
  zip::put(header, 0, 8), zip::put(header, 0, 2);
  zip::put(header, field_32(record.header_offset), 4);
  return header + record.name + extra;
}

std::string directory_end(std::int64_t offset, std::int64_t size, std::size_t records) {
  std::string end;
  if (needs_64(offset) || needs_64(size) || records >= zip::k16) {
    zip::put(end, zip::kEnd64, 4);
    zip::put(end, zip::kEnd64Bytes - 12, 8);
    zip::put(end, 45, 2);
    zip::put(end, 45, 2);
    zip::put(end, 0, 4 + 4);
    zip::put(end, records, 8);
    zip::put(end, records, 8);
    zip::put(end, static_cast<std::uint64_t>(size), 8);
    zip::put(end, static_cast<std::uint64_t>(offset), 8);
    zip::put(end, zip::kLocator64, 4);
    zip::put(end, 0, 4);
    zip::put(end, static_cast<std::uint64_t>(offset + size), 8);
    zip::put(end, 1, 4);
  }
  const std::uint64_t few = records >= zip::k16 ? zip::k16 : records;
  zip::put(end, zip::kEnd, 4);
  zip::put(end, 0, 2 + 2);
  zip::put(end, few, 2);
  zip::put(end, few, 2);
  zip::put(end, field_32(size), 4);
  zip::put(end, field_32(offset), 4);
  zip::put(end, 0, 2);
  return end;
}

}  // namespace

void ZipWriter::put(std::string_view text) {
  file_->write(std::as_bytes(std::span(text)));
  position_ += static_cast<std::int64_t>(text.size());
}

void ZipWriter::begin(const std::string& name, std::int64_t size) {
  end();
  records_.push_back({.name = name, .size = size, .header_offset = position_});
  put(local_header(records_.back()));
  missing_ = size;
  open_ = true;
}

void ZipWriter::write(std::span<const std::byte> bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  TRELLIS_CHECK(open_ && count <= missing_, "more bytes than the record was said to have");
  file_->write(bytes);
  records_.back().crc32 = zip_crc32(records_.back().crc32, bytes);
  position_ += count;
  missing_ -= count;
}

void ZipWriter::end() {
  if (!open_) return;
  const ZipRecord& record = records_.back();
  TRELLIS_CHECK(missing_ == 0, "record " + record.name + " misses bytes");
  const int width = needs_64(record.size) ? 8 : 4;
  std::string descriptor;
  zip::put(descriptor, zip::kDescriptor, 4);
  zip::put(descriptor, record.crc32, 4);
  zip::put(descriptor, static_cast<std::uint64_t>(record.size), width);
  zip::put(descriptor, static_cast<std::uint64_t>(record.size), width);
  put(descriptor);
  open_ = false;
}

void ZipWriter::add(const std::string& name, std::string_view content) {
  begin(name, static_cast<std::int64_t>(content.size()));
  write(std::as_bytes(std::span(content)));
}

void ZipWriter::finish() {
  end();
  const std::int64_t offset = position_;
  std::string directory;
  for (const ZipRecord& record : records_) directory += central_header(record);
  const auto size = static_cast<std::int64_t>(directory.size());
  put(directory + directory_end(offset, size, records_.size()));
  file_->close();
}

}  // namespace trellis::checkpoint
