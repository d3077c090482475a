#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Layout of the records of a zip archive (APPNOTE.TXT of PKWARE).
namespace trellis::checkpoint::zip {

inline constexpr std::uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50,
                               kCentralHeader = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                               kLocator64 = 0x07064b50;
inline constexpr std::size_t kLocalHeaderBytes = 30, kCentralHeaderBytes = 46, kEndBytes = 22,
                             kEnd64Bytes = 56, kLocator64Bytes = 20;
inline constexpr std::uint32_t k32 = 0xFFFFFFFF;  ///< the value is in a zip64 field
inline constexpr std::uint16_t k16 = 0xFFFF;
inline constexpr std::uint16_t kZip64Field = 0x0001, kPaddingField = 0x4246;
/// Names are UTF-8, checksum and sizes follow the data.
inline constexpr std::uint16_t kFlags = 0x0808;
inline constexpr std::uint16_t kEncrypted = 0x0001;
inline constexpr std::int64_t kAlignment = 64;

inline std::uint64_t get(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  return value;
}
inline void put(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
}

}  // namespace trellis::checkpoint::zip
