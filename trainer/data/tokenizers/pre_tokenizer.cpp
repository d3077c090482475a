#include "trainer/data/tokenizers/pre_tokenizer.h"

#include <functional>
#include <utility>

#include "trainer/data/tokenizers/normalizer.h"
#include "trainer/data/tokenizers/unicode.h"

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
    for (const TextRange& range : arrange(parts, behavior_))
      output.add(piece.text.substr(range.begin, range.end - range.begin),
                 piece.at_start && range.begin == 0);
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

/// ASCII's, and Unicode's category P.
constexpr const char* kPunctuation = "[\\p{P}!-/:-@\\[-`{-~]";

/// \\w+|[^\\w\\s]+, where \\w is Unicode's: alphabetic, marks, digits, connectors, joiners.
constexpr const char* kWordsAndMarks =
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}]+|"
    "[^\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}\\s]+";

class PrefixSpace : public PreTokenizer::Step {
 public:
  void apply(const Piece& piece, Output& output) const override {
    if (piece.text.starts_with(' ')) return output.add(piece.text, piece.at_start);
    output.changed->push_back(" " + std::string(piece.text));
    output.add(output.changed->back(), piece.at_start);
  }
};

class Metaspace : public PreTokenizer::Step {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}
  void apply(const Piece& piece, Output& output) const override {
    std::string text = replace_all(piece.text, " ", mark_);
    const bool wanted =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
    output.changed->push_back(std::move(text));
    const Piece changed{output.changed->back(), piece.at_start};
    if (!split_) return output.add(changed.text, changed.at_start);
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
  const auto add_step = [this](const char* pattern, const JsonReader& at, Behavior behavior,
                               bool invert) {
    steps_.push_back(
        std::make_unique<SplitStep>(by_pattern(pattern, at.where()), behavior, invert));
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
    add_step("\\p{N}", json, each ? Behavior::kIsolated : Behavior::kContiguous, false);
  } else if (type == "WhitespaceSplit") {
    add_step("\\s", json, Behavior::kRemoved, false);
  } else if (type == "Whitespace") {
    add_step(kWordsAndMarks, json, Behavior::kRemoved, true);
  } else if (type == "Punctuation") {
    add_step(kPunctuation, json, read_behavior(json["behavior"]), false);
  } else if (type == "BertPreTokenizer") {
    add_step("\\s", json, Behavior::kRemoved, false);
    add_step(kPunctuation, json, Behavior::kIsolated, false);
  } else {
    json["type"].unsupported("the pre-tokenizer " + type +
                             " (known: Sequence, ByteLevel, Split, Metaspace, Digits, Whitespace, "
                             "WhitespaceSplit, Punctuation, BertPreTokenizer)");
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

std::vector<std::string_view> PreTokenizer::words_of(std::string_view text, bool at_start) {
  changed_.clear();
  Output output{{}, &changed_};
  output.add(text, at_start);
  for (const auto& step : steps_) {
    const std::vector<Piece> pieces = std::exchange(output.pieces, {});
    for (const Piece& piece : pieces) step->apply(piece, output);
  }
  std::vector<std::string_view> words;
  for (const Piece& piece : output.pieces) {
    std::size_t begin = 0;
    for (std::size_t place = mark_.empty() ? std::string_view::npos : piece.text.find(mark_);
         place != std::string_view::npos; place = piece.text.find(mark_, place)) {
      if (place > begin) words.push_back(piece.text.substr(begin, place - begin));
      begin = place;
      while (piece.text.compare(place, mark_.size(), mark_) == 0)
        place += mark_.size();  // a run of marks stays with the word after it
    }
    words.push_back(piece.text.substr(begin));
  }
  return words;
}

}  // namespace trellis::trainer
