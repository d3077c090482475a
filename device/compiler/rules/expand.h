#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "device/compiler/graph/graph.h"
#include "sim/collectives/stage_steps.h"

namespace trellis::device {

/// A graph whose list operations (_foreach_*, _fused_adamw_ …) and compound backward operations are
/// cut into single ones.
struct ExpandedGraph {
  Graph graph;
  std::vector<std::uint32_t> origin;  ///< node → node of the graph it came from
};

[[nodiscard]] ExpandedGraph expand(const Graph& graph);
/// True for an operation that expand() cuts and that is not a list of one single operation.
[[nodiscard]] bool is_compound(std::string_view plain_name);

}  // namespace trellis::device
