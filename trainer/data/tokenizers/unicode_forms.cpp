#include "trainer/data/tokenizers/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "trainer/data/tokenizers/unicode.h"

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

/// Control, format, surrogate, private use: what `tokenizers` calls other.
bool is_other(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS: return true;
    default: return false;
  }
}

bool is_chinese(std::uint32_t code) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks), [code](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

}  // namespace

std::string normal_form(std::string_view text, UnicodeForm form) {
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
  std::string result;
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(result, static_cast<std::uint32_t>(codes[static_cast<std::size_t>(i)]));
  return result;
}

std::string lower_case(std::string_view text) {
  constexpr std::uint32_t kDottedI = 0x130, kDot = 0x307;  // the only one that becomes two
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view) {
    append_utf8(result, code == kDottedI ? 'i'
                                         : static_cast<std::uint32_t>(utf8proc_tolower(
                                               static_cast<utf8proc_int32_t>(code))));
    if (code == kDottedI) append_utf8(result, kDot);
  });
  return result;
}

std::string without_marks(std::string_view text, bool all) {
  std::string result;
  for_each_character(text, [&](std::uint32_t code, std::string_view bytes) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    const bool other = category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
    if (category != UTF8PROC_CATEGORY_MN && !(all && other)) result += bytes;
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
    const bool white = code == '\t' || code == '\n' || code == '\r';
    if (code == 0 || code == 0xFFFD || (!white && is_other(code))) return;
    result += white || is_space(code) ? std::string_view(" ") : bytes;
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

}  // namespace trellis::trainer
