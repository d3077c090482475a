#include "device/kernels/builders.h"

/// Kernels whose addresses are data.
namespace trellis::device {
namespace {

using sim::isa::DType;

Operands gather_operands(const KernelInput& in) {
  const std::int64_t tokens = in.size("tokens"), width = in.size("width");
  return {{"table", {in.size("rows"), width}, in.dtype, false, tokens * width},
          {"tokens", {tokens}, DType::kInt32},
          {"out", {tokens, width}, in.dtype, true}};
}
void gather(GraphWriter& g, const KernelInput&) {
  g.node("embedding", {g["table"], g["tokens"]}, {g["out"]}, "padding_idx=-1");
}

Operands scatter_operands(const KernelInput& in) {
  const std::int64_t tokens = in.size("tokens"), width = in.size("width");
  return {{"grad", {tokens, width}, in.dtype},
          {"tokens", {tokens}, DType::kInt32},
          {"grad_table", {in.size("rows"), width}, in.dtype, true}};
}
void scatter(GraphWriter& g, const KernelInput& in) {
  g.node("embedding_dense_backward", {g["grad"], g["tokens"]}, {g["grad_table"]},
         "num_weights=" + std::to_string(in.size("rows")) + " padding_idx=-1");
}

}  // namespace

std::vector<KernelSpec> table_kernels() {
  const std::vector<KernelParameter> sizes{{"tokens", 4096, "rows to move"},
                                           {"rows", 32768, "of the table"},
                                           {"width", 4096, "elements of a row"}};
  return {
      {"embedding",
       "out[i] = table[tokens[i]]",
       "embedding lookup: a gather by the DMA engines",
       sizes,
       {DType::kBf16, DType::kFp32},
       {},
       {"tokens"},
       gather_operands,
       build_graph<gather>},
      {"embedding_backward",
       "grad_table[tokens[i]] += grad[i]",
       "gradient of an embedding: a scatter-add by the DMA engines",
       sizes,
       {DType::kFp32, DType::kBf16},
       {},
       {"tokens"},
       scatter_operands,
       build_graph<scatter>},
  };
}

}  // namespace trellis::device
