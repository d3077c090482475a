#include "trainer/files/data/tokenizers/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

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

/// Calls `body` with each character of a list of gaps and lengths; `step`: numbers of a range.
template <typename Body>
void for_each_code(std::span<const std::uint32_t> ranges, std::size_t step, Body body) {
  std::uint32_t code = 0;
  for (std::size_t i = 0; i + 1 < ranges.size(); i += step) {
    code += ranges[i];
    for (const std::uint32_t end = code + ranges[i + 1]; code < end; ++code)
      body(code, ranges[i + step - 1]);
  }
}

std::vector<CharClass> make_classes() {
  std::vector<CharClass> classes(kCodes, CharClass::kOther);
  const auto mark = [&](CharSet set, CharClass value) {
    for_each_code(reference_set(set), 2,
                  [&](std::uint32_t code, std::uint32_t) { classes[code] = value; });
  };
  mark(CharSet::kLetters, CharClass::kLetter);
  mark(CharSet::kNumbers, CharClass::kNumber);
  constexpr std::uint32_t kWhiteSpace[][2] = {
      {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  for (const auto& [first, last] : kWhiteSpace)
    std::fill(classes.begin() + first, classes.begin() + last + 1, CharClass::kSpace);
  return classes;
}

std::array<std::vector<bool>, kNumCharSets> make_sets() {
  std::array<std::vector<bool>, kNumCharSets> sets;
  for (std::size_t i = 0; i < kNumCharSets; ++i) {
    sets[i].resize(kCodes);
    for_each_code(reference_set(static_cast<CharSet>(i)), 2,
                  [&](std::uint32_t code, std::uint32_t) { sets[i][code] = true; });
  }
  return sets;
}

std::vector<std::uint32_t> make_lower_cases() {
  std::vector<std::uint32_t> lower;
  for_each_code(reference_lower_cases(), 3, [&](std::uint32_t code, std::uint32_t to) {
    while (lower.size() < code) lower.push_back(static_cast<std::uint32_t>(lower.size()));
    lower.push_back(to);
  });
  return lower;
}

std::vector<std::uint8_t> make_scripts() {
  std::vector<std::uint8_t> scripts(kCodes, kAnyScript);
  for_each_code(reference_scripts(), 3, [&](std::uint32_t code, std::uint32_t script) {
    scripts[code] = static_cast<std::uint8_t>(script);
  });
  return scripts;
}

}  // namespace

const CharClass* char_classes() {
  static const std::vector<CharClass> classes = make_classes();
  return classes.data();
}

bool is_in(CharSet set, std::uint32_t code) {
  static const auto sets = make_sets();
  return sets[static_cast<std::size_t>(set)][code];
}

std::uint32_t lower_case_of(std::uint32_t code) {
  static const std::vector<std::uint32_t> lower = make_lower_cases();
  return code < lower.size() ? lower[code] : code;
}

std::uint8_t script_of(std::uint32_t code) {
  static const std::vector<std::uint8_t> scripts = make_scripts();
  return scripts[code];
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
