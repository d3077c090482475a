#include <algorithm>
#include <unordered_map>

#include "trainer/files/data/tokenizers/piece_models.h"
#include "trainer/files/data/tokenizers/unicode.h"
#include "trainer/files/data/tokenizers/vocabulary.h"
#include "trainer/files/data/tokenizers/word_cache.h"

namespace trellis::trainer {
namespace {

class WordPiece : public WordModel {
 public:
  explicit WordPiece(const JsonReader& model)
      : vocabulary_(model["vocab"]),
        prefix_(model["continuing_subword_prefix"].text_or("##")),
        most_(model["max_input_chars_per_word"].is_null()
                  ? 100
                  : model["max_input_chars_per_word"].id()) {
    const std::string unknown = model["unk_token"].text_or("[UNK]");
    const auto id = vocabulary_.id_of(unknown);
    if (!id) model["unk_token"].wrong("a token of the vocabulary");
    unknown_ = *id;
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) override {
    cache_.encode(word, ids, [this](std::string_view fresh, std::vector<std::int32_t>& result) {
      pieces_.clear();
      if (!cut(fresh)) pieces_.assign(1, unknown_);
      result.insert(result.end(), pieces_.begin(), pieces_.end());
    });
  }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  const std::string& token(std::int32_t id) const override { return vocabulary_.token(id); }
  std::optional<std::int32_t> id_of(const std::string& token) const override {
    return vocabulary_.id_of(token);
  }

  std::string text_in_word(std::int32_t id) const override {
    if (id == unknown_) return "";
    const std::string& text = token(id);
    return !prefix_.empty() && text.starts_with(prefix_) ? text.substr(prefix_.size()) : text;
  }

 private:
  /// Cuts the word into pieces_. Returns false if it has too many characters, or pieces that the
  /// vocabulary does not have.
  bool cut(std::string_view word) {
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < word.size();) {
      i += utf8_at(word, i).length;
      ends.push_back(i);
    }
    if (std::ssize(ends) > most_) return false;
    for (std::size_t begin = 0; begin < word.size();) {
      const auto first = std::ranges::upper_bound(ends, begin);
      std::size_t end = begin;
      for (auto last = ends.end(); last != first && end == begin;) {
        --last;
        std::string piece(begin > 0 ? prefix_ : "");
        piece += word.substr(begin, *last - begin);
        if (const auto id = vocabulary_.id_of(piece)) {
          pieces_.push_back(*id);
          end = *last;
        }
      }
      if (end == begin) return false;
      begin = end;
    }
    return true;
  }

  Vocabulary vocabulary_;
  std::string prefix_;
  std::int64_t most_;
  std::int32_t unknown_ = 0;
  WordCache cache_;
  std::vector<std::int32_t> pieces_;
};

}  // namespace

std::unique_ptr<WordModel> make_word_piece(const JsonReader& model) {
  return std::make_unique<WordPiece>(model);
}

}  // namespace trellis::trainer
