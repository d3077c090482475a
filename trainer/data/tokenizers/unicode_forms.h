#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trellis::trainer {

enum class UnicodeForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Texts are valid UTF-8. Tables of utf8proc (Unicode 14). `tokenizers` has older ones
/// (Unicode 8 in BertNormalizer, 9 in StripAccents): marks that came later are letters to it.
[[nodiscard]] std::string normal_form(std::string_view text, UnicodeForm form);
[[nodiscard]] std::string lower_case(std::string_view text);
/// Without non-spacing marks (Mn), or without all marks: a decomposed text loses its accents.
[[nodiscard]] std::string without_marks(std::string_view text, bool all);
/// White_Space at both ends.
[[nodiscard]] std::string stripped(std::string_view text, bool left, bool right);
/// BERT's cleaning: no control characters, one kind of space.
[[nodiscard]] std::string cleaned(std::string_view text);
/// A space around each Chinese character.
[[nodiscard]] std::string spaced_chinese(std::string_view text);

}  // namespace trellis::trainer
