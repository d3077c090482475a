#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/files/data/tokenizers/word_cache.h"
#include "trainer/files/data/tokenizers/word_model.h"

namespace trellis::trainer {

/// A vocabulary and the merges of byte-pair encoding, as files give them.
struct BpeTables {
  std::string file;  ///< named in errors
  std::unordered_map<std::string, std::int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  ///< by falling priority
  bool byte_level =
      false;  ///< tokens are written in GPT-2's alphabet; symbols are bytes, otherwise characters
  bool byte_fallback = false;  ///< a character without a token becomes <0xNN> for each of its bytes
  bool fuse_unk = false;
  bool ignore_merges = false;  ///< a word that is a token is that token
  std::string prefix;          ///< of symbols that do not begin a word
  std::string suffix;          ///< of symbols that end a word
  std::optional<std::string> unk_token;
};

/// Byte-pair encoding of one word at a time: symbols are joined by the merge of highest priority,
/// the leftmost first, until none applies. Words are remembered. Not for several threads at a time.
class BpeModel : public WordModel {
 public:
  /// Throws ConfigError when a merge names or makes a token that the vocabulary does not have, or
  /// an id occurs twice.
  explicit BpeModel(const BpeTables& tables);

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) override;
  [[nodiscard]] std::int32_t vocab_size() const override {
    return static_cast<std::int32_t>(tokens_.size());
  }
  [[nodiscard]] const std::string& token(std::int32_t id) const override {
    return tokens_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::optional<std::int32_t> id_of(const std::string& token) const override;
  [[nodiscard]] std::string text_in_word(std::int32_t id) const override;
  /// No token of several symbols holds `mark` after another symbol: a text may be cut before each
  /// such mark without changing its tokens.
  [[nodiscard]] bool can_cut_before(std::string_view mark) const override;

 private:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t result = -1;
  };
  struct Symbol {
    std::int32_t id;
    std::int32_t previous, next;  ///< places in the list; −1: none
  };

  void add_merges(const BpeTables& tables);
  void find_byte_ids();
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void split(std::string_view word);
  void split_characters(std::string_view word);
  void split_with_affixes(std::string_view word);
  /// Adds a symbol that the vocabulary does not have: as its bytes, or as the unknown token.
  void add_unknown(std::string_view symbol, bool& unknown_before);
  void merge_few();
  void merge_many();
  void encode_new_word(std::string_view word, std::vector<std::int32_t>& ids);

  std::unordered_map<std::string, std::int32_t> vocab_;
  std::vector<std::string> tokens_;
  /// Open addressing over (left, right); a key of 0 is an empty place.
  std::vector<std::pair<std::uint64_t, Merge>> merges_;
  std::uint64_t merge_mask_ = 0;
  std::unordered_map<std::string, std::int32_t>
      whole_words_;             ///< when ignore_merges, in the symbols of words
  std::int32_t byte_ids_[256];  ///< of a byte (byte_level) or of <0xNN>; −1: none
  std::int32_t unk_ = -1;
  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  std::string prefix_, suffix_;
  WordCache cache_;
  std::vector<std::int32_t> symbols_;  ///< of the word at work
};

}  // namespace trellis::trainer
