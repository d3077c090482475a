#pragma once

#include "device/compiler/graph/graph.h"
#include "sim/config/system_config.h"

namespace trellis::device {

/// The op of a node that a rule has made part of another one: it costs nothing. It stays so that
/// nodes keep their numbers.
inline constexpr const char* kAbsorbedOp = "absorbed";

/// A recorded graph after the rules that look at several operations at once: patterns that the
/// compiler has better code for become one node. Node i of the result is where node i of
/// `graph` was; buffers are added after those of `graph`, nothing is renumbered. Rules look
/// across communication and layers, so they come before a graph is cut into pieces. Applying them
/// twice changes nothing more.
[[nodiscard]] Graph apply_rules(const Graph& graph, const sim::CompilerRules& rules);

}  // namespace trellis::device
