#include "sim/profile/operand_text.h"

#include <charconv>

namespace trellis::sim {
namespace {

using std::string_view;

/// "[a,b,…]" at the front of `text`, which loses it.
std::optional<std::vector<std::int64_t>> take_list(string_view& text) {
  const auto close = text.find(']');
  if (!text.starts_with('[') || close == string_view::npos) return std::nullopt;
  string_view inside = text.substr(1, close - 1);
  std::vector<std::int64_t> list;
  for (;;) {
    const auto comma = inside.find(',');
    const auto number = read_integer(inside.substr(0, comma));
    if (!number) return std::nullopt;
    list.push_back(*number);
    if (comma == string_view::npos) break;
    inside.remove_prefix(comma + 1);
  }
  text.remove_prefix(close + 1);
  return list;
}

/// The next word; a semaphore's name in brackets, which has a space before it, belongs to it.
string_view take_word(string_view& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == string_view::npos) return text = {};
  text.remove_prefix(begin);
  auto end = text.find_first_of(" \t");
  if (end != string_view::npos && text.substr(end).starts_with(" (")) {
    const auto close = text.find(')', end);
    end = close == string_view::npos ? close : text.find_first_of(" \t", close);
  }
  const string_view word = text.substr(0, end);
  text.remove_prefix(word.size());
  return word;
}

std::optional<SemaphoreText> read_semaphore(string_view word) {
  if (word.starts_with('$')) word.remove_prefix(1);
  const auto close = word.find(']');
  if (!word.starts_with("S[") || close == string_view::npos) return std::nullopt;
  SemaphoreText s;
  const auto id = read_integer(word.substr(2, close - 2));
  if (!id || *id < 0 || *id > 0xffff) return std::nullopt;
  s.id = static_cast<std::uint32_t>(*id);
  word.remove_prefix(close + 1);
  if (const auto name = word.find(')'); word.starts_with(" (") && name != string_view::npos)
    word.remove_prefix(name + 1);
  const string_view effect = word.substr(0, word.find('@'));
  const auto digit = effect.find_first_of("0123456789");
  s.action = std::string(effect.substr(0, digit));
  if (digit == string_view::npos) return s;
  const auto value = read_integer(effect.substr(digit));
  if (!value) return std::nullopt;
  s.value = *value;
  return s;
}

}  // namespace

std::optional<std::int64_t> read_integer(string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return negative ? -value : value;
}

std::optional<std::string> InstructionText::find(string_view key) const {
  for (const auto& [name, value] : fields) {
    if (name == key) return value;
  }
  return std::nullopt;
}

InstructionText read_instruction_text(string_view text) {
  InstructionText out;
  for (string_view word = take_word(text); !word.empty(); word = take_word(text)) {
    if (auto semaphore = read_semaphore(word)) {
      out.semaphores.push_back(std::move(*semaphore));
    } else if (const auto at = word.find('='); at != string_view::npos && at > 0) {
      out.fields.emplace_back(word.substr(0, at), word.substr(at + 1));
    } else {
      out.words.emplace_back(word);
    }
  }
  return out;
}

std::optional<OperandText> read_pattern_text(string_view text) {
  OperandText out;
  auto strides = take_list(text);
  auto counts = strides ? take_list(text) : std::nullopt;
  if (!counts || !text.empty() || strides->size() != counts->size()) return std::nullopt;
  out.strides = std::move(*strides);
  out.counts = std::move(*counts);
  return out;
}

std::optional<OperandText> read_operand_text(string_view text) {
  const auto at = text.find('@');
  const auto list = text.find('[');
  std::string dtype;
  if (at != string_view::npos && (list == string_view::npos || at < list)) {
    dtype = text.substr(0, at);
    text.remove_prefix(at + 1);
  }
  const auto address = read_integer(text.substr(0, text.find('[')));
  if (!address || *address < 0) return std::nullopt;
  std::optional<OperandText> out = OperandText{};
  if (const auto open = text.find('['); open != string_view::npos) {
    out = read_pattern_text(text.substr(open));
    if (!out) return std::nullopt;
  }
  out->dtype = std::move(dtype);
  out->address = static_cast<std::uint64_t>(*address);
  return out;
}

}  // namespace trellis::sim
