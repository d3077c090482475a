#include "traces/tensorboard_writer.h"

#include <array>

#include <protozero/pbf_writer.hpp>

namespace trellis::traces {
namespace {

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum : std::uint32_t {
  kEvent_wall_time = 1,
  kEvent_step = 2,
  kEvent_file_version = 3,
  kEvent_summary = 5,
  kSummary_value = 1,
  kValue_tag = 1,
  kValue_simple_value = 2,
};

/// CRC-32C (Castagnoli), reflected polynomial.
constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = ~0u;
  for (const char c : data)
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

/// TFRecord stores CRCs masked, because a CRC of data that contains its own CRC is weak.
std::uint32_t masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
std::string little_endian(T value) {
  std::string out(sizeof value, '\0');
  for (std::size_t i = 0; i < sizeof value; ++i)
    out[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  return out;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& path, double wall_time)
    : stream_(path, FileStream::Mode::kReplace) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kEvent_wall_time, wall_time);
  writer.add_string(kEvent_file_version, "brain.Event:2");
  write_record(event);
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value,
                               double wall_time) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kEvent_wall_time, wall_time);
  writer.add_int64(kEvent_step, step);
  {
    protozero::pbf_writer summary(writer, kEvent_summary);
    protozero::pbf_writer entry(summary, kSummary_value);
    entry.add_string(kValue_tag, tag.data(), tag.size());
    entry.add_float(kValue_simple_value, static_cast<float>(value));
  }
  write_record(event);
}

void TensorBoardWriter::write_record(const std::string& event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  const std::string record =
      length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event));
  stream_.write(record.data(), static_cast<std::streamsize>(record.size()));
  stream_.check();
}

}  // namespace trellis::traces
