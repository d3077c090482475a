#include <fmt/format.h>

#include "base/error.h"
#include "device/kernels/builders.h"

/// Kernels that reduce each row and use the result on it.
namespace trellis::device {
namespace {

using sim::isa::DType;

const std::vector<DType> kRowTypes{DType::kBf16, DType::kFp32, DType::kFp16};

std::vector<std::int64_t> matrix(const KernelInput& in) {
  return {in.size("rows"), in.size("columns")};
}

Operands softmax_operands(const KernelInput& in) {
  return {{"x", matrix(in), in.dtype}, {"out", matrix(in), in.dtype, true}};
}
void softmax(GraphWriter& g, const KernelInput&) {
  g.node("_softmax", {g["x"]}, {g["out"]}, "dim=-1 half_to_float=0");
}

Operands rms_norm_operands(const KernelInput& in) {
  return {{"x", matrix(in), in.dtype},
          {"weight", {in.size("columns")}, in.dtype},
          {"out", matrix(in), in.dtype, true}};
}
std::string normalized(const KernelInput& in) {
  return "normalized_shape=[" + std::to_string(in.size("columns")) + "] eps=1e-05";
}
void rms_norm(GraphWriter& g, const KernelInput& in) {
  g.node("rms_norm", {g["x"], g["weight"]}, {g["out"]}, normalized(in));
}

Operands layer_norm_operands(const KernelInput& in) {
  return {{"x", matrix(in), in.dtype},
          {"weight", {in.size("columns")}, in.dtype},
          {"bias", {in.size("columns")}, in.dtype},
          {"out", matrix(in), in.dtype, true}};
}
void layer_norm(GraphWriter& g, const KernelInput& in) {
  g.node("layer_norm", {g["x"], g["weight"], g["bias"]}, {g["out"]}, normalized(in));
}

Operands routing_operands(const KernelInput& in) {
  const std::int64_t tokens = in.size("tokens"), k = in.size("k");
  return {{"logits", {tokens, in.size("experts")}, in.dtype},
          {"weights", {tokens, k}, in.dtype, true},
          {"experts", {tokens, k}, DType::kInt32, true}};
}
void routing(GraphWriter& g, const KernelInput& in) {
  if (in.size("k") > in.size("experts"))
    throw ConfigError(fmt::format("routing.k: expected at most the {} experts, got {}",
                                  in.size("experts"), in.size("k")));
  const std::uint32_t probabilities =
      g.temporary({in.size("tokens"), in.size("experts")}, in.dtype);
  g.node("_softmax", {g["logits"]}, {probabilities}, "dim=-1 half_to_float=0");
  g.node("topk", {probabilities}, {g["weights"], g["experts"]},
         "k=" + std::to_string(in.size("k")) + " dim=-1 largest=1 sorted=1");
}

}  // namespace

std::vector<KernelSpec> row_kernels() {
  const std::vector<KernelParameter> sizes{
      {"rows", 4096, "vectors, e.g. tokens"},
      {"columns", 4096, "elements of a vector, e.g. hidden size"}};
  return {
      {"softmax",
       "out = softmax(x) along rows",
       "probabilities outside attention",
       sizes,
       kRowTypes,
       {},
       {"rows"},
       softmax_operands,
       build_graph<softmax>},
      {"rms_norm",
       "out = x / rms(x) · weight",
       "Llama's normalisation",
       sizes,
       kRowTypes,
       {},
       {"rows"},
       rms_norm_operands,
       build_graph<rms_norm>},
      {"layer_norm",
       "out = (x − mean) / deviation · weight + bias",
       "GPT's normalisation",
       sizes,
       kRowTypes,
       {},
       {"rows"},
       layer_norm_operands,
       build_graph<layer_norm>},
      {"routing",
       "weights, experts = top-k of softmax(logits)",
       "the router of a mixture of experts",
       {{"tokens", 4096, "rows of logits"},
        {"experts", 64, "columns of logits"},
        {"k", 2, "experts per token"}},
       kRowTypes,
       {},
       {"tokens"},
       routing_operands,
       build_graph<routing>},
  };
}

}  // namespace trellis::device
