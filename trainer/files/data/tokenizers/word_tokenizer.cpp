#include "trainer/files/data/tokenizers/word_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

using Places = std::span<const std::size_t>;

/// The part of a word that each of its tokens covers. A token for text outside the vocabulary
/// covers it up to the next token that the vocabulary has, and at least one character.
std::vector<TextRange> ranges_of(std::string_view word, const WordModel& model,
                                 std::span<const std::int32_t> ids) {
  std::vector<TextRange> ranges;
  std::size_t end = 0;
  for (const std::int32_t id : ids) {
    const std::string text = model.text_in_word(id);
    const std::size_t least =
        text.empty() && end < word.size() ? end + utf8_at(word, end).length : end;
    const std::size_t found = text.empty() ? least : std::min(word.find(text, end), word.size());
    if (!text.empty() && !ranges.empty()) ranges.back().end = std::max(ranges.back().end, found);
    ranges.push_back(text.empty() ? TextRange{end, least}
                                  : TextRange{found, std::min(found + text.size(), word.size())});
    end = ranges.back().end;
  }
  if (!ranges.empty()) ranges.back().end = word.size();
  return ranges;
}

}  // namespace

/// One text on its way to tokens, and the places that are found among them, in order.
class WordTokenizer::Encoding {
 public:
  Encoding(WordTokenizer& tokenizer, std::vector<std::int32_t>& ids)
      : tokenizer_(tokenizer), ids_(ids) {}
  [[nodiscard]] std::vector<TokenPlace> take_found() { return std::move(found_); }

  void raw(std::string_view text, Places places) {
    parts(tokenizer_.raw_tokens_, text, true, places,
          [this](std::string_view part, bool at_start, Places inside) {
            normalized(part, at_start, inside);
          });
  }

 private:
  /// Added tokens, and `rest(text, at_start, places)` for the texts between them.
  template <typename Rest>
  void parts(const AddedTokens& added, std::string_view text, bool at_start, Places places,
             Rest rest) {
    if (added.empty()) return rest(text, at_start, places);
    for (const TextPart& part : added.split(text)) {
      const auto [begin, end] = part.range;
      found_up_to(begin, places);
      std::vector<std::size_t> inside;
      for (; !places.empty() && places[0] < end; places = places.subspan(1))
        inside.push_back(places[0] - begin);
      if (part.id) {
        found_.insert(found_.end(), inside.size(), {ids_.size(), ids_.size() + 1});
        ids_.push_back(*part.id);
      } else {
        rest(text.substr(begin, end - begin), at_start && begin == 0, inside);
      }
    }
    found_up_to(text.size(), places);
  }

  void normalized(std::string_view text, bool at_start, Places places) {
    const auto after = [this](std::string_view part, bool starts, Places inside) {
      words(part, starts, inside);
    };
    const Normalizer& normalizer = tokenizer_.normalizer_;
    if (normalizer.changes_nothing())
      return parts(tokenizer_.normalized_tokens_, text, at_start, places, after);
    const std::string normal = normalizer.apply(text);
    std::vector<std::size_t> moved;
    for (const std::size_t place : places) {
      const std::size_t least = moved.empty() ? 0 : moved.back();
      moved.push_back(std::max(least, normalizer.place_after(text, place, normal.size())));
    }
    parts(tokenizer_.normalized_tokens_, normal, at_start, moved, after);
  }

  void words(std::string_view text, bool at_start, Places places) {
    tokenizer_.pre_tokenizer_.for_each_word(
        text, at_start, !places.empty(), [&](const PreTokenizer::Piece& word) {
          if (!places.empty()) {
            found_up_to(word.origin(0), places);
            if (!places.empty() && places[0] <= word.origin(word.text.size() - 1))
              return word_with_places(word, places);
          }
          tokenizer_.model_->encode_word(word.text, ids_);
        });
    found_up_to(text.size(), places);
  }

  /// A word that some of the places are inside of.
  void word_with_places(const PreTokenizer::Piece& word, Places& places) {
    const std::size_t before = ids_.size();
    tokenizer_.model_->encode_word(word.text, ids_);
    const std::vector<TextRange> ranges =
        ranges_of(word.text, *tokenizer_.model_, std::span(ids_).subspan(before));
    for (; !places.empty() && places[0] <= word.origin(word.text.size() - 1);
         places = places.subspan(1)) {
      std::size_t byte = 0;
      while (word.origin(byte) < places[0]) ++byte;
      TokenPlace at{before, before};
      for (const TextRange& range : ranges) {
        at.ended += range.end <= byte ? 1 : 0;
        at.begun += range.begin < byte ? 1 : 0;
      }
      found_.push_back(at);
    }
  }

  /// Places before the token that comes next.
  void found_up_to(std::size_t end, Places& places) {
    for (; !places.empty() && places[0] <= end; places = places.subspan(1))
      found_.push_back({ids_.size(), ids_.size()});
  }

  WordTokenizer& tokenizer_;
  std::vector<std::int32_t>& ids_;
  std::vector<TokenPlace> found_;
};

WordTokenizer::WordTokenizer(std::unique_ptr<WordModel> model, std::vector<AddedToken> added,
                             Normalizer normalizer, PreTokenizer pre_tokenizer,
                             TokenDecoder decoder)
    : model_(std::move(model)),
      normalizer_(std::move(normalizer)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      decoder_(std::move(decoder)),
      raw_tokens_(select(added, false)),
      normalized_tokens_(select(added, true)) {
  for (const AddedToken& token : added) {
    vocab_size_ = std::max(vocab_size_, token.id + 1);
    added_[token.id] = token;
  }
  vocab_size_ = std::max(vocab_size_, model_->vocab_size());
  constexpr const char* kSpaceMark = "\xE2\x96\x81";  // ▁, of SentencePiece
  if (!pre_tokenizer_.byte_level() && model_->can_cut_before(kSpaceMark))
    pre_tokenizer_.cut_before(kSpaceMark);
}

std::optional<std::int32_t> WordTokenizer::id_of(const std::string& token) const {
  for (const auto& [id, added] : added_) {
    if (added.content == token) return id;
  }
  return model_->id_of(token);
}

bool WordTokenizer::is_special(std::int32_t id) const {
  const auto added = added_.find(id);
  return (added != added_.end() && added->second.special) || id == special_.eos ||
         id == special_.bos || id == special_.pad;
}

SpecialAffixes WordTokenizer::affixes() const {
  if (!affixes_problem_.empty()) throw ConfigError(affixes_problem_);
  return affixes_;
}

std::vector<TokenPlace> WordTokenizer::encode_at(std::string_view text, Places places,
                                                 std::vector<std::int32_t>& ids) {
  if (const std::size_t good = valid_utf8_prefix(text); good != text.size()) {
    throw ConfigError("a text to be tokenised is no UTF-8: byte " + std::to_string(good) + " of " +
                      std::to_string(text.size()));
  }
  Encoding encoding(*this, ids);
  encoding.raw(text, places);
  return encoding.take_found();
}

std::string WordTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (const auto added = added_.find(id); added != added_.end()) {
      tokens.push_back(added->second.content);
    } else if (id >= 0 && id < model_->vocab_size()) {
      tokens.push_back(model_->token(id));
    }
  }
  return decoder_.decode(std::move(tokens));
}

AddedTokens WordTokenizer::select(const std::vector<AddedToken>& added, bool normalized) const {
  std::vector<AddedToken> chosen;
  for (const AddedToken& token : added) {
    if (token.normalized != normalized) continue;
    chosen.push_back(token);
    if (normalized) chosen.back().content = normalizer_.apply(token.content);
  }
  return AddedTokens(std::move(chosen));
}

}  // namespace trellis::trainer
