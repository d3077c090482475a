#pragma once

#include <cstddef>
#include <string>

namespace trellis {

/// Part `index` of `count` of a work: the items whose place leaves that remainder.
struct Shard {
  std::size_t index = 0, count = 1;
  [[nodiscard]] bool has(std::size_t place) const { return place % count == index; }
  [[nodiscard]] std::string text() const {
    return std::to_string(index + 1) + "/" + std::to_string(count);
  }
};
/// "2/8": the second of eight. Throws ConfigError.
[[nodiscard]] Shard parse_shard(const std::string& text);

}  // namespace trellis
