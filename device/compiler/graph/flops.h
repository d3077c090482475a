#pragma once

#include <cstdint>

#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// FLOPs of an operation by its shapes (2·M·N·K for matmuls, one per output element for
/// element-wise ones).
[[nodiscard]] std::int64_t node_flops(const Graph& graph, const Node& node);

}  // namespace trellis::device
