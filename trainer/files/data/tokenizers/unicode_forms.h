#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/files/data/tokenizers/reference_tables.h"

namespace trellis::trainer {

enum class UnicodeForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Texts are valid UTF-8. Characters are what the reference's tables say (reference_tables.h);
/// utf8proc composes and decomposes those that its normal forms know.
[[nodiscard]] std::string normal_form(std::string_view text, UnicodeForm form);
[[nodiscard]] std::string lower_case(std::string_view text);
/// Removes the characters of a set: a decomposed text loses its accents.
[[nodiscard]] std::string without(std::string_view text, CharSet set);
/// Removes White_Space at the left and right end.
[[nodiscard]] std::string stripped(std::string_view text, bool left, bool right);
/// BERT's cleaning: removes control characters and unifies spaces.
[[nodiscard]] std::string cleaned(std::string_view text);
/// Applies SentencePiece's rule "nmt": removes control characters and unifies spaces.
[[nodiscard]] std::string nmt_cleaned(std::string_view text);
/// Adds a space on both sides of each Chinese character.
[[nodiscard]] std::string spaced_chinese(std::string_view text);

}  // namespace trellis::trainer
