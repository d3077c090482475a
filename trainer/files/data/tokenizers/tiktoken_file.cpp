#include "trainer/files/data/tokenizers/tiktoken_file.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "trainer/files/data/tokenizers/byte_alphabet.h"

namespace trellis::trainer {
namespace {

using Ranks = std::unordered_map<std::string, std::int32_t>;

/// nullopt: this is no base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

Ranks read_ranks(const std::string& file) {
  const MappedFile mapped(file);
  std::string_view rest = mapped.text();
  Ranks ranks;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto token = from_base64(line.substr(0, space));
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    std::int32_t rank = -1;
    const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!token || error != std::errc() || last != digits.data() + digits.size() || rank < 0)
      throw ConfigError(file + ":" + std::to_string(number) +
                        ": expected a token in base64, a space and its rank");
    if (!ranks.emplace(*token, rank).second)
      throw ConfigError(file + ":" + std::to_string(number) + ": this token is there twice");
  }
  return ranks;
}

std::string in_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_character(static_cast<unsigned char>(c));
  return text;
}

}  // namespace

BpeTables read_tiktoken_file(const std::string& file) {
  const Ranks ranks = read_ranks(file);
  BpeTables tables;
  tables.file = file;
  tables.byte_level = tables.ignore_merges = true;
  for (int byte = 0; byte < 256; ++byte) {
    if (!ranks.contains(std::string(1, static_cast<char>(byte))))
      throw ConfigError(file + ": expected a token for each byte; " + std::to_string(byte) +
                        " has none");
  }
  struct Join {
    std::int32_t rank, left_rank, right_rank;
    std::string left, right;
    auto operator<=>(const Join&) const = default;
  };
  std::vector<Join> joins;
  for (const auto& [token, rank] : ranks) {
    tables.vocab.emplace(in_alphabet(token), rank);
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left == ranks.end() || right == ranks.end()) continue;
      joins.push_back(
          {rank, left->second, right->second, in_alphabet(left->first), in_alphabet(right->first)});
    }
  }
  std::ranges::sort(joins);
  for (Join& join : joins) tables.merges.emplace_back(std::move(join.left), std::move(join.right));
  return tables;
}

}  // namespace trellis::trainer
