#pragma once

#include <algorithm>
#include <cstdint>

#include "base/process/parallel_for.h"

namespace trellis::trainer {

/// Calls `body` with first … end − 1 on `workers` threads. The exception of the lowest number that
/// throws one is thrown.
template <typename Body>
void for_each_record(std::int64_t first, std::int64_t end, unsigned workers, const Body& body) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t blocks = (std::max(first, end) - first + kBlock - 1) / kBlock;
  parallel_for(static_cast<std::size_t>(blocks), workers, [&](std::size_t block) {
    const std::int64_t begin = first + static_cast<std::int64_t>(block) * kBlock;
    for (std::int64_t i = begin; i < std::min(begin + kBlock, end); ++i) body(i);
  });
}

}  // namespace trellis::trainer
