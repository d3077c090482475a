#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Where a place of a text is among its tokens; the numbers differ where it is inside of one.
struct TokenPlace {
  std::size_t ended = 0;  ///< tokens that end at the place or before it
  std::size_t begun = 0;  ///< tokens that begin before it
};

/// Ids that a tokenizer's post-processor puts around a text.
struct SpecialAffixes {
  std::vector<std::int32_t> before, after;
};

/// Text ↔ token ids. Not for several threads at a time, because it remembers words: make one for
/// each.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of whole vocabulary, added tokens included: the largest id + 1.
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> eos_id() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> bos_id() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> pad_id() const = 0;
  /// Appends the ids of a UTF-8 text; no special token is added around it. Throws ConfigError for a
  /// text that the tokenizer cannot represent.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  /// The same, and where `places` are among all of `ids`. REQUIRES: they rise, from 0 to
  /// text.size().
  [[nodiscard]] virtual std::vector<TokenPlace> encode_at(std::string_view text,
                                                          std::span<const std::size_t> places,
                                                          std::vector<std::int32_t>& ids) = 0;
  /// The text of ids; special tokens are kept. Ids outside of the vocabulary give nothing.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// A token that means something else than text, such as the end of a turn.
  [[nodiscard]] virtual bool is_special(std::int32_t) const { return false; }
  /// Ids that the tokenizer's own post-processor adds; empty when it has none.
  [[nodiscard]] virtual SpecialAffixes affixes() const { return {}; }
  /// Notes for the user: lines on how the tokenizer's files were understood.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace trellis::trainer
