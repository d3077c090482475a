#pragma once

#include "device/kernels/graph_writer.h"
#include "device/kernels/kernel_spec.h"

/// The catalogue's entries: operands and programs.
namespace trellis::device {

using Operands = std::vector<KernelOperand>;

/// A kernel that is a graph: `write` adds its nodes.
template <void (*write)(GraphWriter&, const KernelInput&)>
BuiltKernel build_graph(const KernelInput& input, const Operands& operands) {
  GraphWriter graph(input.spec.name, operands);
  write(graph, input);
  return graph.build(input.core());
}

[[nodiscard]] Operands matmul_operands(const KernelInput& input);
[[nodiscard]] BuiltKernel build_matmul(const KernelInput& input, const Operands& operands);

[[nodiscard]] KernelSpec quantise_kernel();
[[nodiscard]] std::vector<KernelSpec> elementwise_kernels();
[[nodiscard]] std::vector<KernelSpec> row_kernels();  ///< softmax, norms, routing
[[nodiscard]] std::vector<KernelSpec> attention_kernels();
[[nodiscard]] std::vector<KernelSpec> table_kernels();  ///< gathers and scatters of rows
[[nodiscard]] std::vector<KernelSpec> tile_kernels();   ///< written tile by tile

}  // namespace trellis::device
