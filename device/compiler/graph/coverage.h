#pragma once

#include <cstdint>

namespace trellis::device {

/// Operators and FLOPs of one graph that were lowered to executable instructions, and those that
/// were only estimated.
struct Coverage {
  std::int64_t lowered_ops = 0, estimated_ops = 0;
  std::int64_t lowered_flops = 0, estimated_flops = 0;
  Coverage& operator+=(const Coverage& other);
};

}  // namespace trellis::device
