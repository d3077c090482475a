#include "trainer/files/data/tokenizers/byte_alphabet.h"

#include <array>
#include <cstdlib>

#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

struct Alphabet {
  Alphabet() {
    code_to_byte.fill(-1);
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const std::uint32_t code = printable ? byte : next++;
      append_utf8(characters[byte], code);
      code_to_byte[code] = static_cast<int>(byte);
    }
  }
  std::array<std::string, 256> characters;
  std::array<int, 0x144> code_to_byte{};
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

const std::string& byte_character(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<char> byte_of_fallback(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(token.substr(3, 2).c_str(), &end, 16);
  return *end == '\0' ? std::optional(static_cast<char>(value)) : std::nullopt;
}

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  std::string bytes;
  if (valid_utf8_prefix(text) != text.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = utf8_at(text, i);
    if (c.code >= alphabet().code_to_byte.size() || alphabet().code_to_byte[c.code] < 0)
      return std::nullopt;
    bytes += static_cast<char>(alphabet().code_to_byte[c.code]);
    i += c.length;
  }
  return bytes;
}

}  // namespace trellis::trainer
