#pragma once

#include <algorithm>
#include <cstdint>

namespace trellis::sim {

struct Chunk {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  auto operator<=>(const Chunk&) const = default;
};

/// Part `index` of `whole` cut into `parts` as evenly as possible; the first parts are the longer
/// ones.
[[nodiscard]] constexpr Chunk part_of(Chunk whole, int parts, int index) {
  const std::int64_t base = whole.length / parts;
  const std::int64_t longer = whole.length % parts;
  return {whole.begin + index * base + std::min<std::int64_t>(index, longer),
          base + (index < longer ? 1 : 0)};
}

[[nodiscard]] constexpr Chunk chunk_range(std::int64_t elements, int parts, int index) {
  return part_of({0, elements}, parts, index);
}

}  // namespace trellis::sim
