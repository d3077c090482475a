#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trellis::trainer {

/// Sets of characters as the reference has them, in the order of the generated file.
enum class CharSet : std::uint8_t {
  kLetters,          ///< \p{L} of regular expressions
  kNumbers,          ///< \p{N}
  kNewUpper,         ///< \p{Lu} of them after Unicode 14, which PCRE2 may not know
  kNewLower,         ///< \p{Ll}
  kNewTitle,         ///< \p{Lt}
  kNewModifiers,     ///< \p{Lm}
  kNewOtherLetters,  ///< \p{Lo}
  kNewMarks,         ///< \p{M}
  kNewNumbers,       ///< \p{N}
  kNewPunctuation,   ///< \p{P}
  kWordCharacters,   ///< \w of Whitespace, and next to tokens with single_word
  kDigits,           ///< of the pre-tokenizer Digits
  kPunctuation,      ///< of the pre-tokenizer Punctuation
  kAccents,          ///< of StripAccents
  kBertAccents,      ///< of BertNormalizer
  kBertControls,     ///< of its clean_text
  kNoNormalForms,    ///< normal forms leave them as they are
};
inline constexpr std::size_t kNumCharSets = 17;

/// The package `tokenizers` is built from several tables of Unicode, of several versions; these are
/// what it does with each character. Ranges as the gap after the one before and the length.
[[nodiscard]] std::span<const std::uint32_t> reference_set(CharSet set);
/// Characters with one lower case: gap, 1, lower case.
[[nodiscard]] std::span<const std::uint32_t> reference_lower_cases();
/// Characters of one script: gap, length, number.
[[nodiscard]] std::span<const std::uint32_t> reference_scripts();

}  // namespace trellis::trainer
