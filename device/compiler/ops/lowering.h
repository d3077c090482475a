#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"
#include "device/compiler/graph/coverage.h"
#include "device/compiler/graph/flops.h"
#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/scalars.h"

namespace trellis::device {

/// Shared state in the lowering of one graph: the graph, the program so far, and which program
/// buffer represents which graph buffer.
class Lowering {
 public:
  Lowering(const Graph& graph, std::vector<std::int32_t> slots, const sim::CoreConfig& core);

  [[nodiscard]] const Graph& graph() const { return graph_; }
  ProgramBuilder& builder() { return builder_; }

  /// Program buffer of a graph buffer; external and output buffers have slots in the order in which
  /// nodes name them.
  std::uint32_t buffer(std::uint32_t graph_buffer);
  HbmView view(std::uint32_t value);
  HbmView input(const Node& node, std::size_t i) { return view(node.inputs.at(i)); }
  HbmView output(const Node& node, std::size_t i) { return view(node.outputs.at(i)); }

  /// Opens a kernel for a node; counts it as lowered or estimated.
  std::uint32_t kernel(const std::string& name, std::uint32_t node, std::int64_t flops,
                       bool estimated = false, std::int64_t ops = 1);
  Coverage& coverage() { return coverage_; }
  std::vector<std::string>& estimated() { return estimated_; }

 private:
  void measure_buffers();

  const Graph& graph_;
  ProgramBuilder builder_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int64_t> bytes_;
  std::vector<std::uint32_t> program_buffer_;
  Coverage coverage_;
  std::vector<std::string> estimated_;
};

using LowerFunction = void (*)(Lowering& lowering, const Node& node, std::uint32_t index);

/// The lowering of an operation that is no element-wise chain; nullptr when there is none.
[[nodiscard]] LowerFunction find_lowering(std::string_view plain_name);
/// Passes over its elements that an operation costs that has no executable lowering; 0: unknown
/// operation.
[[nodiscard]] double estimated_passes(std::string_view plain_name,
                                      const sim::OperationPasses& passes);

void lower_matmul(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_attention(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_attention_backward(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_rows_gather(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_embedding_backward(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_rows_add(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_nll_loss(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_nll_loss_backward(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_gather(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_scatter(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_scatter_add(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_cumsum(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_sort(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_top_k(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_cat(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_padded(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_repeat(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_range(Lowering& lowering, const Node& node, std::uint32_t index);
void lower_to_host(Lowering& lowering, const Node& node, std::uint32_t index);
/// An operation without executable lowering: loads, passes of kGeneric, stores.
void lower_estimate(Lowering& lowering, const Node& node, std::uint32_t index, double passes);

/// A chain of one copy, for lowerings that move parts of tensors.
void copy_view(Lowering& lowering, std::uint32_t kernel, const HbmView& target,
               const HbmView& source);
void fill_view(Lowering& lowering, std::uint32_t kernel, const HbmView& target, double value);

}  // namespace trellis::device
