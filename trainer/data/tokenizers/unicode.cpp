#include "trainer/data/tokenizers/unicode.h"

#include <cstring>
#include <vector>

#include "trainer/data/tokenizers/regex.h"

namespace trellis::trainer {
namespace {

constexpr std::uint32_t kCodes = 0x110000;

/// Length of the valid character at `place`, or 0.
std::size_t valid_length(std::string_view text, std::size_t place) {
  const auto first = static_cast<unsigned char>(text[place]);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : (first & 0xF0) == 0xE0        ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || place + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[place + i]) & 0xC0) != 0x80) return 0;
  }
  const std::uint32_t code = utf8_at(text, place).code;
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  return overlong || (code >= 0xD800 && code < 0xE000) || code >= kCodes ? 0 : length;
}

void mark(std::vector<CharClass>& classes, const std::string& all, const char* pattern,
          CharClass value) {
  const Regex regex(pattern, "Unicode table");
  for (auto match = regex.find(all, 0); match; match = regex.find(all, match->end)) {
    for (std::size_t i = match->begin; i < match->end;) {
      const Utf8Char c = utf8_at(all, i);
      classes[c.code] = value;
      i += c.length;
    }
  }
}

std::vector<CharClass> make_classes() {
  std::string all;
  for (std::uint32_t code = 0; code < kCodes; ++code) {
    if (code < 0xD800 || code >= 0xE000) append_utf8(all, code);
  }
  std::vector<CharClass> classes(kCodes, CharClass::kOther);
  mark(classes, all, "\\p{L}+", CharClass::kLetter);
  mark(classes, all, "\\p{N}+", CharClass::kNumber);
  // White_Space: PCRE2's own \s also takes U+180E, which Unicode has taken out.
  mark(classes, all,
       "[\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
       "\\x{205F}\\x{3000}]+",
       CharClass::kSpace);
  return classes;
}

}  // namespace

const CharClass* char_classes() {
  static const std::vector<CharClass> classes = make_classes();
  return classes.data();
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t place = 0;
  while (place < text.size()) {
    if (place + 8 <= text.size()) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, text.data() + place, 8);
      if ((eight & 0x8080808080808080) == 0) {
        place += 8;
        continue;
      }
    }
    const std::size_t length = valid_length(text, place);
    if (length == 0) return place;
    place += length;
  }
  return place;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](int shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    tail(6), tail(0);
  } else {
    put(0xF0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

}  // namespace trellis::trainer
