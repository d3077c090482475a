#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/sections/hub_tokens.h"
#include "trainer/files/data/tokenizers/regex.h"

namespace trellis::trainer {

/// A part of a text: an added token, or text between them.
struct TextPart {
  TextRange range;
  std::optional<std::int32_t> id;
};

/// Finds added tokens, from the left, the longest at each place.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  [[nodiscard]] std::vector<TextPart> split(std::string_view text) const;

 private:
  [[nodiscard]] const AddedToken* token_at(std::string_view text, std::size_t place) const;
  [[nodiscard]] std::size_t next_candidate(std::string_view text, std::size_t place) const;

  std::vector<AddedToken> tokens_;  ///< longest first
  std::vector<std::size_t> by_first_byte_[256];
  std::string first_bytes_;
};

}  // namespace trellis::trainer
