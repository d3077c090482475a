#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/files/data/tokenizers/reference_tables.h"

namespace trellis::trainer {

/// Class of a character in the regular expressions of pre-tokenizers: \p{L}, \p{N}, \s
/// (White_Space), or none of them.
enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace };

/// The class of any character, by the reference's tables: 1.1 MB, made at the first call.
[[nodiscard]] const CharClass* char_classes();

/// True if a character is in one of the reference's sets. The sets are made at the first call.
[[nodiscard]] bool is_in(CharSet set, std::uint32_t code);
/// The lower case of a character that has one of one character; else itself.
[[nodiscard]] std::uint32_t lower_case_of(std::uint32_t code);

/// A number for the script of a character, by the pre-tokenizer UnicodeScripts.
[[nodiscard]] std::uint8_t script_of(std::uint32_t code);
inline constexpr std::uint8_t kAnyScript = 255;  ///< such as of a space

struct Utf8Char {
  std::uint32_t code = 0;
  std::uint32_t length = 1;  ///< bytes
};
/// The character that starts at `place` of a valid UTF-8 text.
[[nodiscard]] inline Utf8Char utf8_at(std::string_view text, std::size_t place) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[place + i]));
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

/// Bytes before the first one that is no UTF-8; text.size() when all is well.
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view text);
void append_utf8(std::string& text, std::uint32_t code);

}  // namespace trellis::trainer
