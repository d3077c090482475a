#include "trainer/files/data/tokenizers/word_scanner.h"

#include <array>
#include <cstdint>

#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

constexpr std::size_t kUnknown = std::string_view::npos;

enum class ByteClass : std::uint8_t { kOther, kLetter, kNumber, kSpace, kLineEnd, kBeyond, kEnd };

/// ASCII's classes; kBeyond: a byte of another character.
constexpr std::array<ByteClass, 256> kByteClasses = [] {
  std::array<ByteClass, 256> classes{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    classes[static_cast<std::size_t>(c)] = c >= 0x80                ? ByteClass::kBeyond
                                           : letter                 ? ByteClass::kLetter
                                           : c >= '0' && c <= '9'   ? ByteClass::kNumber
                                           : c == '\r' || c == '\n' ? ByteClass::kLineEnd
                                           : c == ' ' || c == '\t' || c == '\v' || c == '\f'
                                               ? ByteClass::kSpace
                                               : ByteClass::kOther;
  }
  return classes;
}();

/// Most words are ASCII, and end before ASCII: they need no characters, only bytes. Functions give
/// kUnknown where a character beyond ASCII may belong to the word.
class Bytes {
 public:
  explicit Bytes(std::string_view text) : text_(text) {}
  [[nodiscard]] ByteClass at(std::size_t place) const {
    return place < text_.size() ? kByteClasses[static_cast<unsigned char>(text_[place])]
                                : ByteClass::kEnd;
  }
  [[nodiscard]] std::size_t end_of(ByteClass kind, std::size_t place) const {
    while (at(place) == kind) ++place;
    return known(place);
  }
  [[nodiscard]] std::size_t end_of_line_ends(std::size_t place) const {
    while (at(place) == ByteClass::kLineEnd) ++place;
    return place;
  }
  /// \s+(?!\S)|\s+ ; `lines`: \s*[\r\n]+ goes before it.
  [[nodiscard]] std::size_t end_of_spaces(std::size_t begin, bool lines) const {
    std::size_t end = begin, line = 0;
    for (; at(end) == ByteClass::kSpace || at(end) == ByteClass::kLineEnd; ++end) {
      if (at(end) == ByteClass::kLineEnd) line = end + 1;
    }
    if (known(end) == kUnknown) return kUnknown;
    if (lines && line > 0) return line;
    return end == text_.size() || end == begin + 1 ? end : end - 1;
  }

 private:
  [[nodiscard]] std::size_t known(std::size_t end) const {
    return at(end) == ByteClass::kBeyond ? kUnknown : end;
  }
  std::string_view text_;
};

std::size_t gpt2_end_in_bytes(std::string_view text, std::size_t begin) {
  const Bytes bytes(text);
  const bool space = text[begin] == ' ';
  const ByteClass kind = bytes.at(space ? begin + 1 : begin);
  if (kind == ByteClass::kBeyond || text[begin] == '\'') return kUnknown;
  if (kind == ByteClass::kLetter || kind == ByteClass::kNumber || kind == ByteClass::kOther)
    return bytes.end_of(kind, space ? begin + 1 : begin);
  return bytes.end_of_spaces(begin, false);
}

std::size_t llama3_end_in_bytes(std::string_view text, std::size_t begin) {
  const Bytes bytes(text);
  const ByteClass kind = bytes.at(begin), next = bytes.at(begin + 1);
  if (kind == ByteClass::kLetter) return bytes.end_of(kind, begin);
  if (kind == ByteClass::kBeyond || text[begin] == '\'') return kUnknown;
  if (kind == ByteClass::kNumber) {
    std::size_t end = begin;
    while (end < begin + 3 && bytes.at(end) == kind) ++end;
    return end < begin + 3 && bytes.at(end) == ByteClass::kBeyond ? kUnknown : end;
  }
  if (kind != ByteClass::kLineEnd && next == ByteClass::kLetter)
    return bytes.end_of(next, begin + 1);
  if (next == ByteClass::kBeyond) return kUnknown;
  if (kind == ByteClass::kOther || (text[begin] == ' ' && next == ByteClass::kOther)) {
    const std::size_t end = bytes.end_of(ByteClass::kOther, begin + 1);
    return end == kUnknown ? kUnknown : bytes.end_of_line_ends(end);
  }
  return bytes.end_of_spaces(begin, true);
}

/// A place in a text, with the class of the character there.
class Cursor {
 public:
  Cursor(std::string_view text, std::size_t place)
      : text_(text), classes_(char_classes()), place_(place) {
    look();
  }
  [[nodiscard]] bool at_end() const { return place_ >= text_.size(); }
  [[nodiscard]] std::size_t place() const { return place_; }
  [[nodiscard]] std::uint32_t code() const { return current_.code; }
  [[nodiscard]] bool is(CharClass kind) const { return !at_end() && class_ == kind; }
  [[nodiscard]] bool is_line_end() const {
    return !at_end() && (current_.code == '\r' || current_.code == '\n');
  }
  void step() {
    place_ += current_.length;
    look();
  }
  void skip(CharClass kind) {
    while (is(kind)) step();
  }
  [[nodiscard]] Cursor next() const {
    Cursor after = *this;
    after.step();
    return after;
  }

 private:
  void look() {
    if (at_end()) return;
    const auto byte = static_cast<unsigned char>(text_[place_]);
    current_ = byte < 0x80 ? Utf8Char{.code = byte, .length = 1} : utf8_at(text_, place_);
    class_ = classes_[current_.code];
  }

  std::string_view text_;
  const CharClass* classes_;
  std::size_t place_;
  Utf8Char current_;
  CharClass class_ = CharClass::kOther;
};

constexpr std::uint32_t kLongS = 0x17F;  // folds to s

/// Bytes of 's 't 're 've 'm 'll 'd at the cursor, or 0. `fold`: whatever the case.
std::size_t contraction(Cursor at, bool fold) {
  if (at.at_end() || at.code() != '\'') return 0;
  const std::size_t begin = at.place();
  const auto letter = [&](const Cursor& c) -> std::uint32_t {
    if (c.at_end()) return 0;
    if (fold && c.code() == kLongS) return 's';
    return fold && c.code() >= 'A' && c.code() <= 'Z' ? c.code() + ('a' - 'A') : c.code();
  };
  at.step();
  const std::uint32_t first = letter(at);
  if (first == 0) return 0;
  at.step();
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at.place() - begin;
  const std::uint32_t second = letter(at);
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
  if (!two) return 0;
  at.step();
  return at.place() - begin;
}

/// \s+(?!\S)|\s+ : spaces up to the last one, which goes with the word after it, unless it is the
/// only one.
std::size_t end_of_spaces(Cursor at) {
  std::size_t last = at.place();
  const std::size_t begin = last;
  while (at.is(CharClass::kSpace)) {
    last = at.place();
    at.step();
  }
  return at.at_end() || last == begin ? at.place() : last;
}

std::size_t gpt2_word_end(std::string_view text, std::size_t begin) {
  if (const std::size_t end = gpt2_end_in_bytes(text, begin); end != kUnknown) return end;
  Cursor at(text, begin);
  if (const std::size_t length = contraction(at, false)) return begin + length;
  if (at.code() == ' ') {
    const Cursor next = at.next();
    if (next.at_end() || next.is(CharClass::kSpace)) return end_of_spaces(at);
    at = next;
  } else if (at.is(CharClass::kSpace)) {
    return end_of_spaces(at);
  }
  at.skip(at.is(CharClass::kLetter)   ? CharClass::kLetter
          : at.is(CharClass::kNumber) ? CharClass::kNumber
                                      : CharClass::kOther);
  return at.place();
}

/// \s*[\r\n]+ : spaces up to the last line end among them; 0 when there is none.
std::size_t end_of_lines(Cursor at) {
  std::size_t end = 0;
  while (at.is(CharClass::kSpace)) {
    const bool line_end = at.is_line_end();
    at.step();
    if (line_end) end = at.place();
  }
  return end;
}

std::size_t llama3_word_end(std::string_view text, std::size_t begin) {
  if (const std::size_t end = llama3_end_in_bytes(text, begin); end != kUnknown) return end;
  Cursor at(text, begin);
  if (const std::size_t length = contraction(at, true)) return begin + length;
  if (!at.is(CharClass::kNumber) && !at.is_line_end()) {
    Cursor letters = at.is(CharClass::kLetter) ? at : at.next();
    if (letters.is(CharClass::kLetter)) {
      letters.skip(CharClass::kLetter);
      return letters.place();
    }
  }
  if (at.is(CharClass::kNumber)) {
    for (int digits = 0; digits < 3 && at.is(CharClass::kNumber); ++digits) at.step();
    return at.place();
  }
  Cursor others = at.code() == ' ' ? at.next() : at;
  if (others.is(CharClass::kOther)) {
    others.skip(CharClass::kOther);
    while (others.is_line_end()) others.step();
    return others.place();
  }
  if (const std::size_t end = end_of_lines(at)) return end;
  return end_of_spaces(at);
}

}  // namespace

std::optional<WordEnd> word_scanner_for(const std::string& pattern) {
  if (pattern == kGpt2Pattern) return gpt2_word_end;
  if (pattern == kLlama3Pattern) return llama3_word_end;
  return std::nullopt;
}

}  // namespace trellis::trainer
