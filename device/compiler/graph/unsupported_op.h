#pragma once

#include "base/error.h"
#include "device/compiler/graph/graph.h"

namespace trellis::device {

/// An operation that the compiler cannot lower: named, with its shapes and where it was called
/// (exit code 2).
class UnsupportedOp : public Error {
 public:
  UnsupportedOp(const Graph& graph, const Node& node);
};

}  // namespace trellis::device
