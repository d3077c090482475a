#include "device/kernels/graph_writer.h"

#include <algorithm>

#include "base/check.h"

namespace trellis::device {

GraphWriter::GraphWriter(std::string name, const std::vector<KernelOperand>& operands) {
  graph_.name = std::move(name);
  for (const KernelOperand& o : operands) {
    tensor(o.sizes, o.dtype, o.output ? BufferRole::kOutput : BufferRole::kExternal);
    names_.push_back(o.name);
  }
}

std::uint32_t GraphWriter::operator[](std::string_view operand) const {
  const auto found = std::find(names_.begin(), names_.end(), operand);
  TRELLIS_CHECK(found != names_.end(),
                "kernel " + graph_.name + " has no operand " + std::string(operand));
  return static_cast<std::uint32_t>(found - names_.begin());
}

std::uint32_t GraphWriter::temporary(const std::vector<std::int64_t>& sizes, DType dtype) {
  return tensor(sizes, dtype, BufferRole::kTemporary);
}

std::uint32_t GraphWriter::tensor(const std::vector<std::int64_t>& sizes, DType dtype,
                                  BufferRole role) {
  TensorView v{sizes, std::vector<std::int64_t>(sizes.size()), 0, dtype};
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) v.strides[d] = stride;
  graph_.buffers.push_back({role, stride * sim::isa::size_bytes(dtype)});
  graph_.values.push_back({static_cast<std::uint32_t>(graph_.buffers.size() - 1), std::move(v)});
  return static_cast<std::uint32_t>(graph_.values.size() - 1);
}

std::uint32_t GraphWriter::view(std::uint32_t of, const std::vector<std::int64_t>& sizes,
                                const std::vector<std::int64_t>& strides) {
  const Value& v = graph_.values.at(of);
  graph_.values.push_back({v.buffer, {sizes, strides, v.view.offset, v.view.dtype}});
  return static_cast<std::uint32_t>(graph_.values.size() - 1);
}

void GraphWriter::node(std::string op, std::vector<std::uint32_t> inputs,
                       std::vector<std::uint32_t> outputs, std::string scalars) {
  Node n;
  n.op = std::move(op);
  n.scalars = std::move(scalars);
  n.inputs = std::move(inputs);
  n.outputs = std::move(outputs);
  graph_.nodes.push_back(std::move(n));
}

BuiltKernel GraphWriter::build(const sim::CoreConfig& core) const {
  CompiledGraph compiled = compile(graph_, core);
  BuiltKernel built;
  for (const Node& n : graph_.nodes) built.flops += node_flops(graph_, n);
  built.program = std::move(compiled.program);
  built.estimated = std::move(compiled.estimated);
  return built;
}

}  // namespace trellis::device
