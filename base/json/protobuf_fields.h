#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trellis {

/// One field of a message in the wire format of protocol buffers.
struct ProtobufField {
  std::uint64_t number = 0;
  bool is_bytes = false;  ///< a text, a message or raw bytes; else a number, which is skipped
  std::string_view bytes;
};

/// Takes a number off `message`: seven bits a byte, the lowest first.
inline std::optional<std::uint64_t> take_varint(std::string_view& message) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// Takes the first field off `message`; none when the message is malformed, or has groups, which
/// are deprecated.
inline std::optional<ProtobufField> take_field(std::string_view& message) {
  enum WireType { kVarint, kFixed64, kBytes, kFixed32 = 5 };
  const auto tag = take_varint(message);
  if (!tag) return std::nullopt;
  const auto type = static_cast<int>(*tag & 7);
  std::uint64_t length = type == kFixed64 ? 8 : 4;
  if (type == kVarint || type == kBytes) {
    const auto number = take_varint(message);
    if (!number) return std::nullopt;
    length = type == kBytes ? *number : 0;
  } else if (type != kFixed64 && type != kFixed32) {
    return std::nullopt;
  }
  if (length > message.size()) return std::nullopt;
  const ProtobufField field{*tag >> 3, type == kBytes, message.substr(0, length)};
  message.remove_prefix(length);
  return field;
}

}  // namespace trellis
