#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/graph/graph.h"

namespace trellis::device::testing {

inline TensorView fresh(std::vector<std::int64_t> sizes, DType dtype = DType::kFp32) {
  const HbmView view = contiguous(0, dtype, sizes);
  return {view.sizes, view.strides, 0, dtype};
}

/// Builds graphs value by value; each value gets its own buffer unless it is added with one.
class GraphMaker {
 public:
  std::uint32_t tensor(const TensorView& view, BufferRole role = BufferRole::kTemporary) {
    graph.buffers.push_back({role, view.elements() * sim::isa::size_bytes(view.dtype)});
    return value(static_cast<std::uint32_t>(graph.buffers.size() - 1), view);
  }
  std::uint32_t tensor(std::vector<std::int64_t> sizes, DType dtype = DType::kFp32) {
    return tensor(fresh(std::move(sizes), dtype));
  }
  std::uint32_t value(std::uint32_t buffer, const TensorView& view) {
    graph.values.push_back({buffer, view});
    return static_cast<std::uint32_t>(graph.values.size() - 1);
  }
  Node& op(std::string name, std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs,
           std::string scalars = "") {
    Node node;
    node.op = std::move(name);
    node.scalars = std::move(scalars);
    node.inputs = std::move(inputs);
    node.outputs = std::move(outputs);
    graph.nodes.push_back(std::move(node));
    return graph.nodes.back();
  }

  Graph graph;
};

}  // namespace trellis::device::testing
