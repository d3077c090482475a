#include "base/process/shard.h"

#include <charconv>

#include "base/error.h"
#include "base/escape.h"

namespace trellis {

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto number = [](const std::string& digits, std::size_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && value > 0;
  };
  Shard shard;
  if (slash == std::string::npos || !number(text.substr(0, slash), shard.index) ||
      !number(text.substr(slash + 1), shard.count) || shard.index > shard.count) {
    throw ConfigError("--shard " + terminal_line(text) +
                      ": expected i/n with 1 ≤ i ≤ n, e.g. 2/8, the second of eight parts");
  }
  --shard.index;
  return shard;
}

}  // namespace trellis
