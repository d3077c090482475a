#include "trainer/files/data/tokenizers/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

/// Calls `visit(code, bytes)` for each character.
template <typename Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = utf8_at(text, i);
    visit(c.code, text.substr(i, c.length));
    i += c.length;
  }
}

bool is_space(std::uint32_t code) { return char_classes()[code] == CharClass::kSpace; }

bool is_chinese(std::uint32_t code) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks), [code](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

void append_form(std::string_view text, UnicodeForm form, std::string& result) {
  if (text.empty()) return;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  // With a length: a text may hold zero bytes.
  std::vector<utf8proc_int32_t> codes(2 * text.size() + 16);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  utf8proc_ssize_t count =
      utf8proc_decompose(bytes, size, codes.data(), std::ssize(codes), options);
  if (count > std::ssize(codes)) {
    codes.resize(static_cast<std::size_t>(count));
    count = utf8proc_decompose(bytes, size, codes.data(), count, options);
  }
  if (count >= 0) count = utf8proc_normalize_utf32(codes.data(), count, options);
  if (count < 0)
    throw ConfigError(std::string("a text to be tokenised has no normal form: ") +
                      utf8proc_errmsg(count));
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(result, static_cast<std::uint32_t>(codes[static_cast<std::size_t>(i)]));
}

}  // namespace

std::string normal_form(std::string_view text, UnicodeForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return std::string(text);
  std::string result;
  std::size_t begin = 0, place = 0;  // of the text that is not yet in the result
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    if (is_in(CharSet::kNoNormalForms, code)) {
      append_form(text.substr(begin, place - begin), form, result);
      result += bytes;
      begin = place + bytes.size();
    }
    place += bytes.size();
  });
  append_form(text.substr(begin), form, result);
  return result;
}

std::string lower_case(std::string_view text) {
  constexpr std::uint32_t kDottedI = 0x130, kDot = 0x307;  // the only one that becomes two
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view) {
    append_utf8(result, code == kDottedI ? 'i' : lower_case_of(code));
    if (code == kDottedI) append_utf8(result, kDot);
  });
  return result;
}

std::string without(std::string_view text, CharSet set) {
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    if (!is_in(set, code)) result += bytes;
  });
  return result;
}

std::string stripped(std::string_view text, bool left, bool right) {
  std::size_t begin = text.size(), end = 0, place = 0;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    if (!is_space(code)) {
      begin = std::min(begin, place);
      end = place + bytes.size();
    }
    place += bytes.size();
  });
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(begin < end ? text.substr(begin, end - begin) : std::string_view());
}

std::string cleaned(std::string_view text) {
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    if (is_in(CharSet::kBertControls, code)) return;
    result += is_space(code) ? std::string_view(" ") : bytes;
  });
  return result;
}

std::string spaced_chinese(std::string_view text) {
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    const bool chinese = is_chinese(code);
    if (chinese) result += ' ';
    result += bytes;
    if (chinese) result += ' ';
  });
  return result;
}

std::string nmt_cleaned(std::string_view text) {
  const auto in = [](std::uint32_t code, std::initializer_list<std::pair<int, int>> ranges) {
    return std::ranges::any_of(ranges, [code](const auto& range) {
      return static_cast<int>(code) >= range.first && static_cast<int>(code) <= range.second;
    });
  };
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    if (in(code, {{0x1, 0x8}, {0xB, 0xB}, {0xE, 0x1F}, {0x7F, 0x7F}, {0x8F, 0x8F}, {0x9F, 0x9F}}))
      return;
    const bool space = in(code, {{0x9, 0xD},
                                 {0x1680, 0x1680},
                                 {0x200B, 0x200F},
                                 {0x2028, 0x2029},
                                 {0x2581, 0x2581},
                                 {0xFEFF, 0xFEFF},
                                 {0xFFFD, 0xFFFD}});
    result += space ? std::string_view(" ") : bytes;
  });
  return result;
}

}  // namespace trellis::trainer
