#pragma once

#include <cstdint>
#include <optional>

#include "device/compiler/emit/layout_axes.h"
#include "device/compiler/emit/phase.h"

namespace trellis::device {

/// `from` and the axes inside it are contiguous in the source, `to` in the target.
struct Exchange {
  Axis from, to;
  Axes inner;  ///< of `from`, innermost last
  Axes outer;
  [[nodiscard]] std::int64_t inner_size() const {
    std::int64_t n = 1;
    for (const Axis& a : inner) n *= a.size;
    return n;
  }
};

/// Two axes that fill the array; nullopt: there are none.
[[nodiscard]] std::optional<Exchange> plan_exchange(const Axes& axes);

/// Exchanges them on the Tensor engine, 128 × 128 elements at a time.
[[nodiscard]] Phase exchange_axes(std::uint32_t kernel, const HbmView& source,
                                  const HbmView& target, const Exchange& plan);

}  // namespace trellis::device
