#pragma once

#include <string>
#include <vector>

#include "device/compiler/compile.h"
#include "device/compiler/graph/graph.h"
#include "device/kernels/kernel_spec.h"

namespace trellis::device {

/// Writes the graph of one kernel down: its operands are contiguous tensors, its nodes what the
/// recorder would have seen.
class GraphWriter {
 public:
  GraphWriter(std::string name, const std::vector<KernelOperand>& operands);

  /// Value of an operand. REQUIRES: its name is in the list.
  [[nodiscard]] std::uint32_t operator[](std::string_view operand) const;
  [[nodiscard]] std::uint32_t temporary(const std::vector<std::int64_t>& sizes, DType dtype);
  /// Another view of a value's buffer.
  [[nodiscard]] std::uint32_t view(std::uint32_t of, const std::vector<std::int64_t>& sizes,
                                   const std::vector<std::int64_t>& strides);
  void node(std::string op, std::vector<std::uint32_t> inputs, std::vector<std::uint32_t> outputs,
            std::string scalars = "");

  [[nodiscard]] BuiltKernel build(const sim::CoreConfig& core) const;

 private:
  std::uint32_t tensor(const std::vector<std::int64_t>& sizes, DType dtype, BufferRole role);

  Graph graph_;
  std::vector<std::string> names_;  ///< of the first values
};

}  // namespace trellis::device
