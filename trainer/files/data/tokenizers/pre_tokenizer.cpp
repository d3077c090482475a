#include "trainer/files/data/tokenizers/pre_tokenizer.h"

#include <functional>
#include <utility>

#include "trainer/files/data/tokenizers/normalizer.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

using Piece = PreTokenizer::Piece;
using Output = PreTokenizer::Output;

enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// A part of a text, and whether the pattern matched it.
struct Part {
  TextRange range;
  bool matched = false;
};
using FindParts = std::function<std::vector<Part>(std::string_view)>;

std::vector<TextRange> arrange(const std::vector<Part>& parts, Behavior behavior) {
  std::vector<TextRange> ranges;
  bool join_next = false, last_matched = false;
  for (const Part& part : parts) {
    const bool join =
        (behavior == Behavior::kMergedWithPrevious && part.matched && !last_matched &&
         !ranges.empty()) ||
        (behavior == Behavior::kMergedWithNext && !part.matched && join_next) ||
        (behavior == Behavior::kContiguous && !ranges.empty() && part.matched == last_matched);
    if (behavior == Behavior::kRemoved && part.matched) continue;
    if (join) {
      ranges.back().end = part.range.end;
    } else {
      ranges.push_back(part.range);
    }
    join_next = part.matched;
    last_matched = part.matched;
  }
  return ranges;
}

class SplitStep : public PreTokenizer::Step {
 public:
  SplitStep(FindParts find, Behavior behavior, bool invert)
      : find_(std::move(find)), behavior_(behavior), invert_(invert) {}
  void apply(const Piece& piece, Output& output) const override {
    std::vector<Part> parts = find_(piece.text);
    for (Part& part : parts) part.matched = part.matched != invert_;
    for (const TextRange& range : arrange(parts, behavior_)) output.add(piece.part(range));
  }

 private:
  FindParts find_;
  Behavior behavior_;
  bool invert_;
};

/// Whole text by a known pattern, which leaves no gaps.
FindParts by_scanner(WordEnd word_end) {
  return [word_end](std::string_view text) {
    std::vector<Part> parts;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = word_end(text, begin);
      parts.push_back({{begin, end}, true});
      begin = end;
    }
    return parts;
  };
}

/// `find(text, place)`: the next match from a place on.
template <typename Find>
FindParts by_matches(Find find) {
  return [find](std::string_view text) {
    std::vector<Part> parts;
    std::size_t place = 0;
    while (const std::optional<TextRange> match = find(text, place)) {
      if (match->begin > place) parts.push_back({{place, match->begin}, false});
      parts.push_back({*match, true});
      place = match->end;
    }
    if (place < text.size()) parts.push_back({{place, text.size()}, false});
    return parts;
  };
}

FindParts by_pattern(const std::string& pattern, const std::string& where) {
  if (const auto scanner = word_scanner_for(pattern)) return by_scanner(*scanner);
  const auto regex = std::make_shared<Regex>(pattern, where);
  return by_matches(
      [regex](std::string_view text, std::size_t place) { return regex->find(text, place); });
}

FindParts by_text(const std::string& mark) {
  return by_matches([mark](std::string_view text, std::size_t place) -> std::optional<TextRange> {
    const std::size_t found = text.find(mark, place);
    if (found == std::string_view::npos) return std::nullopt;
    return TextRange{found, found + mark.size()};
  });
}

/// Single characters that match.
template <typename Matches>
FindParts by_character(Matches matches) {
  return by_matches(
      [matches](std::string_view text, std::size_t place) -> std::optional<TextRange> {
        while (place < text.size()) {
          const Utf8Char c = utf8_at(text, place);
          if (matches(c.code)) return TextRange{place, place + c.length};
          place += c.length;
        }
        return std::nullopt;
      });
}

FindParts by_set(CharSet set) {
  return by_character([set](std::uint32_t code) { return is_in(set, code); });
}

FindParts by_spaces() {
  return by_character([](std::uint32_t code) { return char_classes()[code] == CharClass::kSpace; });
}

/// Runs of characters of one kind; those of kind 0 do not match.
template <typename Kind>
FindParts by_runs(Kind kind) {
  return [kind](std::string_view text) {
    std::vector<Part> parts;
    int last = -1;
    for (std::size_t place = 0; place < text.size();) {
      const Utf8Char c = utf8_at(text, place);
      const int now = kind(c.code);
      if (now != last) parts.push_back({{place, place}, now != 0});
      place += c.length;
      parts.back().range.end = place;
      last = now;
    }
    return parts;
  };
}

/// \w+|[^\w\s]+
FindParts by_words_and_marks() {
  return by_runs([](std::uint32_t code) {
    if (is_in(CharSet::kWordCharacters, code)) return 1;
    return char_classes()[code] == CharClass::kSpace ? 0 : 2;
  });
}

/// Runs of one script, which spaces belong to whatever they are next to. As in the reference,
/// spaces before the first script are left out.
class UnicodeScripts : public PreTokenizer::Step {
 public:
  void apply(const Piece& piece, Output& output) const override {
    std::size_t begin = piece.text.size();
    int last = -1;
    for (std::size_t place = 0; place < piece.text.size();) {
      const Utf8Char c = utf8_at(piece.text, place);
      const std::uint8_t script = script_of(c.code);
      if (script != kAnyScript && script != last) {
        if (last >= 0) output.add(piece.part({begin, place}));
        begin = place;
        last = script;
      }
      place += c.length;
    }
    output.add(piece.part({begin, piece.text.size()}));
  }
};

class PrefixSpace : public PreTokenizer::Step {
 public:
  void apply(const Piece& piece, Output& output) const override {
    output.add(piece.text.starts_with(' ') ? piece : output.replaced(piece, " ", ' ', " "));
  }
};

class Metaspace : public PreTokenizer::Step {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}
  void apply(const Piece& piece, Output& output) const override {
    const bool wanted =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    const bool is_there = piece.text.starts_with(' ') || piece.text.starts_with(mark_);
    const Piece changed = output.replaced(piece, wanted && !is_there ? mark_ : "", ' ', mark_);
    if (!split_) return output.add(changed);
    SplitStep(by_text(mark_), Behavior::kMergedWithNext, false).apply(changed, output);
  }

 private:
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

Behavior read_behavior(const JsonReader& json) {
  const std::string& name = json.text();
  const std::pair<const char*, Behavior> known[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [word, behavior] : known) {
    if (name == word) return behavior;
  }
  json.wrong("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

Metaspace::Prepend read_prepend(const JsonReader& json) {
  // Before prepend_scheme there was add_prefix_space.
  const std::string scheme =
      json["prepend_scheme"].text_or(json["add_prefix_space"].flag(true) ? "always" : "never");
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  json["prepend_scheme"].wrong("always, first or never");
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& json) {
  if (!json.is_null()) add(json);
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;

void PreTokenizer::add(const JsonReader& json) {
  const std::string& type = json["type"].text();
  const auto add_step = [this](FindParts find, Behavior behavior, bool invert = false) {
    steps_.push_back(std::make_unique<SplitStep>(std::move(find), behavior, invert));
    only_scanner_ = nullptr;
  };
  if (byte_level_) json.unsupported("a pre-tokenizer after ByteLevel");
  if (type == "Sequence") {
    for (const JsonReader& step : json["pretokenizers"].elements()) add(step);
  } else if (type == "ByteLevel") {
    add_byte_level(json);
  } else if (type == "Split") {
    add_split(json);
  } else if (type == "Metaspace") {
    const std::string& mark = json["replacement"].text();
    if (mark.empty()) json["replacement"].wrong("a character");
    steps_.push_back(
        std::make_unique<Metaspace>(mark, read_prepend(json), json["split"].flag(true)));
    only_scanner_ = nullptr;
  } else if (type == "Digits") {
    const bool each = json["individual_digits"].flag(false);
    add_step(by_set(CharSet::kDigits), each ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "WhitespaceSplit") {
    add_step(by_spaces(), Behavior::kRemoved);
  } else if (type == "Whitespace") {
    add_step(by_words_and_marks(), Behavior::kRemoved, true);
  } else if (type == "Punctuation") {
    add_step(by_set(CharSet::kPunctuation), read_behavior(json["behavior"]));
  } else if (type == "BertPreTokenizer") {
    add_step(by_spaces(), Behavior::kRemoved);
    add_step(by_set(CharSet::kPunctuation), Behavior::kIsolated);
  } else if (type == "UnicodeScripts") {
    steps_.push_back(std::make_unique<UnicodeScripts>());
    only_scanner_ = nullptr;
  } else if (type == "CharDelimiterSplit") {
    const std::string& delimiter = json["delimiter"].text();
    if (delimiter.empty()) json["delimiter"].wrong("a character");
    add_step(by_text(delimiter), Behavior::kRemoved);
  } else {
    json["type"].unsupported("the pre-tokenizer " + type +
                             " (known: Sequence, ByteLevel, Split, Metaspace, Digits, Whitespace, "
                             "WhitespaceSplit, CharDelimiterSplit, Punctuation, BertPreTokenizer, "
                             "UnicodeScripts)");
  }
}

void PreTokenizer::add_byte_level(const JsonReader& json) {
  if (json["add_prefix_space"].flag(true)) {
    steps_.push_back(std::make_unique<PrefixSpace>());
    only_scanner_ = nullptr;
  }
  if (json["use_regex"].flag(true)) {
    steps_.push_back(std::make_unique<SplitStep>(by_pattern(kGpt2Pattern, json.where()),
                                                 Behavior::kIsolated, false));
    only_scanner_ = steps_.size() == 1 ? *word_scanner_for(kGpt2Pattern) : nullptr;
  }
  byte_level_ = true;
}

void PreTokenizer::add_split(const JsonReader& json) {
  const JsonReader pattern = json["pattern"];
  const Behavior behavior = read_behavior(json["behavior"]);
  const bool invert = json["invert"].flag(false);
  if (!pattern["String"].is_null()) {
    const std::string& text = pattern["String"].text();
    if (text.empty()) pattern["String"].wrong("a text that is not empty");
    steps_.push_back(std::make_unique<SplitStep>(by_text(text), behavior, invert));
    only_scanner_ = nullptr;
    return;
  }
  const std::string& regex = pattern["Regex"].text();
  steps_.push_back(
      std::make_unique<SplitStep>(by_pattern(regex, pattern.where()), behavior, invert));
  const auto scanner = word_scanner_for(regex);
  only_scanner_ =
      steps_.size() == 1 && scanner && behavior == Behavior::kIsolated ? *scanner : nullptr;
}

Piece Output::replaced(const Piece& of, std::string_view front, char from,
                       std::string_view to) const {
  std::string text(front);
  std::vector<std::uint32_t> from_where;
  const auto note = [&](std::size_t origin) {
    if (origins) from_where.resize(text.size(), static_cast<std::uint32_t>(origin));
  };
  if (!of.text.empty()) note(of.origin(0));
  for (std::size_t i = 0; i < of.text.size(); ++i) {
    of.text[i] == from ? text.append(to) : text.append(1, of.text[i]);
    note(of.origin(i));
  }
  changed->texts.push_back(std::move(text));
  if (origins) changed->origins.push_back(std::move(from_where));
  return {changed->texts.back(), of.at_start, of.begin,
          origins ? changed->origins.back().data() : nullptr};
}

std::vector<Piece> PreTokenizer::words_of(std::string_view text, bool at_start, bool origins) {
  changed_ = {};
  Output output{{}, &changed_, origins};
  output.add({text, at_start});
  for (const auto& step : steps_) {
    const std::vector<Piece> pieces = std::exchange(output.pieces, {});
    for (const Piece& piece : pieces) step->apply(piece, output);
  }
  if (mark_.empty()) return std::move(output.pieces);
  std::vector<Piece> words;
  for (const Piece& piece : output.pieces) {
    std::size_t begin = 0;
    for (std::size_t place = piece.text.find(mark_); place != std::string_view::npos;
         place = piece.text.find(mark_, place)) {
      if (place > begin) words.push_back(piece.part({begin, place}));
      begin = place;
      while (piece.text.compare(place, mark_.size(), mark_) == 0)
        place += mark_.size();  // a run of marks stays with the word after it
    }
    words.push_back(piece.part({begin, piece.text.size()}));
  }
  return words;
}

}  // namespace trellis::trainer
