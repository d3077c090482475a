#include "base/escape.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace trellis {
namespace {

/// A character of a text; code kNone: one byte that is no UTF-8.
struct Character {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint32_t code = kNone;
  std::size_t length = 1;
};

/// Bytes of a character that starts with `first`; 0: none does.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // goes on with a character, or is longer than it needs to be
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

Character character_at(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = length_of(first);
  if (length == 1) return {first, 1};
  if (length == 0 || length > text.size()) return {};
  std::uint32_t code = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return {};
    code = code << 6 | (next & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kSmallest[length] || surrogate || code > 0x10FFFF) return {};
  return {code, length};
}

/// C0 and C1 controls, line and paragraph separators, and the marks that reverse how a line reads
/// (Unicode TR 36, "Trojan source").
bool controls(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string hex(std::uint32_t value, int digits) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += kDigits[value >> shift & 15U];
  return text;
}

/// The form that JSON has too, so that a JSON document says the same after it.
std::string escape_of(const Character& character, char byte) {
  if (character.code == '\n') return "\\n";
  if (character.code == '\t') return "\\t";
  if (character.code == '\r') return "\\r";
  return character.code == Character::kNone ? "\\x" + hex(static_cast<unsigned char>(byte), 2)
                                            : "\\u" + hex(character.code, 4);
}

/// Nothing of it is ever escaped.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7F; });
}

std::string escaped(std::string_view text, std::string_view kept) {
  if (is_plain(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = character_at(text);
    const bool bad = character.code == Character::kNone || controls(character.code);
    if (bad && kept.find(text[0]) == std::string_view::npos) {
      out += escape_of(character, text[0]);
    } else {
      out += text.substr(0, character.length);
    }
    text.remove_prefix(character.length);
  }
  return out;
}

std::string limited(std::string_view text, std::string_view kept) {
  if (text.size() <= kMostShownBytes) return escaped(text, kept);
  std::string_view shown = text.substr(0, kMostShownBytes);
  shown.remove_suffix(unfinished_utf8(shown));
  return escaped(shown, kept) + "… (" + std::to_string(text.size()) + " bytes in all)";
}

/// Puts `backslash` in front of each of `special`.
std::string with_backslashes(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string terminal_line(std::string_view text) { return limited(text, ""); }

std::string terminal_lines(std::string_view text) {
  if (text.size() <= kMostShownBytes) return terminal_text(text);
  std::string out;
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += limited(text.substr(0, end), "\t");
    if (end == text.size()) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string terminal_text(std::string_view text) { return escaped(text, "\n\t"); }

bool has_controls(std::string_view text) { return !is_plain(text) && escaped(text, "") != text; }

std::optional<std::size_t> find_no_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text.substr(at));
    if (character.code == Character::kNone) return at;
    at += character.length;
  }
  return std::nullopt;
}

std::size_t unfinished_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(text.size(), 3); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80) continue;
    return length_of(byte) > back ? back : 0;
  }
  return 0;
}

std::string csv_cell(std::string_view text) {
  constexpr std::string_view kFormula = "=+-@\t\r";
  const bool formula = !text.empty() && kFormula.find(text[0]) != std::string_view::npos;
  const std::string cell = (formula ? "'" : "") + escaped(text, "\n\t\r");
  if (!formula && cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string out = "\"";
  for (const char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c :
       escaped(text, "\n\t")) {  // XML allows no other control character, not even as a reference
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string json_in_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::string dot_text(std::string_view text) {
  std::string out = "\"";
  for (std::size_t end = 0;; text.remove_prefix(end + 1)) {
    end = std::min(text.find('\n'), text.size());
    out += with_backslashes(terminal_line(text.substr(0, end)), "\"\\");
    if (end == text.size()) return out + '"';
    out += "\\n";
  }
}

std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : with_backslashes(terminal_line(text), "\\|[]")) {
    if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(text);
  if (escaped(text, "") != text)
    return "$'" + escaped(with_backslashes(text, "\\'"), "") +
           "'";  // bash reads \n, \u001b and \xff there
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace trellis
