#pragma once

#include <string>
#include <vector>

#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// "bf16[2, 128]"
[[nodiscard]] std::string shape_text(const TensorView& view);

/// "bf16[2, 128], fp32[128]"
[[nodiscard]] std::string shapes_text(const Graph& graph, const std::vector<std::uint32_t>& values);

}  // namespace trellis::device
