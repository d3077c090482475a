#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::trainer {

/// Tokens of one word, as a pre-tokenizer cuts it. Not for several threads at a time: models
/// remember words.
class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual void encode_word(std::string_view word, std::vector<std::int32_t>& ids) = 0;
  /// Largest id + 1.
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  /// A token as the vocabulary writes it; empty for an id that is not used.
  [[nodiscard]] virtual const std::string& token(std::int32_t id) const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> id_of(const std::string& token) const = 0;
  /// The part of a word that the token represents; empty for a token that represents something
  /// outside the vocabulary.
  [[nodiscard]] virtual std::string text_in_word(std::int32_t id) const { return token(id); }
  /// A text may be cut before each such mark, except between marks, without changing its tokens.
  [[nodiscard]] virtual bool can_cut_before(std::string_view) const { return false; }
};

}  // namespace trellis::trainer
