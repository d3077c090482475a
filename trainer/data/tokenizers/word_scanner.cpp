#include "trainer/data/tokenizers/word_scanner.h"

#include "trainer/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

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
