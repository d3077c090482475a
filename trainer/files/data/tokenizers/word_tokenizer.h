#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/files/data/tokenizers/added_tokens.h"
#include "trainer/files/data/tokenizers/decoder.h"
#include "trainer/files/data/tokenizers/normalizer.h"
#include "trainer/files/data/tokenizers/pre_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"
#include "trainer/files/data/tokenizers/word_model.h"

namespace trellis::trainer {

struct SpecialIds {
  std::optional<std::int32_t> eos, bos, pad;
};

/// text → added tokens and texts between → normalizer → words → tokens.
class WordTokenizer : public Tokenizer {
 public:
  WordTokenizer(std::unique_ptr<WordModel> model, std::vector<AddedToken> added,
                Normalizer normalizer, PreTokenizer pre_tokenizer, TokenDecoder decoder);

  void set_special(const SpecialIds& special) { special_ = special; }
  /// `problem`: why they are not known; thrown when someone asks for them.
  void set_affixes(SpecialAffixes affixes, std::string problem) {
    affixes_ = std::move(affixes);
    affixes_problem_ = std::move(problem);
  }
  void set_notes(std::vector<std::string> notes) { notes_ = std::move(notes); }
  [[nodiscard]] std::optional<std::int32_t> id_of(const std::string& token) const;

  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> eos_id() const override { return special_.eos; }
  std::optional<std::int32_t> bos_id() const override { return special_.bos; }
  std::optional<std::int32_t> pad_id() const override { return special_.pad; }
  bool is_special(std::int32_t id) const override;
  SpecialAffixes affixes() const override;
  std::vector<std::string> notes() const override { return notes_; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    (void)encode_at(text, {}, ids);
  }
  std::vector<TokenPlace> encode_at(std::string_view text, std::span<const std::size_t> places,
                                    std::vector<std::int32_t>& ids) override;
  std::string decode(std::span<const std::int32_t> ids) const override;

 private:
  class Encoding;
  /// The added tokens that are looked for before the normalizer, or after it (`normalized`).
  [[nodiscard]] AddedTokens select(const std::vector<AddedToken>& added, bool normalized) const;

  std::unique_ptr<WordModel> model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::unordered_map<std::int32_t, AddedToken> added_;
  std::int32_t vocab_size_ = 0;
  SpecialIds special_;
  SpecialAffixes affixes_;
  std::string affixes_problem_;
  std::vector<std::string> notes_;
};

}  // namespace trellis::trainer
