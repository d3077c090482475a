#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace trellis::trainer {

/// GPT-2's alphabet: each byte as one printable character. Bytes that are printable in Latin-1
/// represent themselves, the others for U+0100 … U+0143 in order.
[[nodiscard]] const std::string& byte_character(unsigned char byte);
/// The byte of a token "<0x0A>"; nothing for other tokens.
[[nodiscard]] std::optional<char> byte_of_fallback(const std::string& token);
/// The bytes that a text in this alphabet represents; nothing when it holds another character.
[[nodiscard]] std::optional<std::string> bytes_of_alphabet(std::string_view text);

}  // namespace trellis::trainer
