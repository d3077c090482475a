#include "device/kernels/builders.h"

/// Kernels that touch every element of their operands once.
namespace trellis::device {
namespace {

using sim::isa::DType;

const std::vector<DType> kElementTypes{DType::kBf16, DType::kFp32, DType::kFp16};

template <int inputs>
Operands vectors(const KernelInput& in) {
  const std::int64_t n = in.size("elements");
  Operands all{{"x", {n}, in.dtype}};
  if (inputs > 1) all.push_back({"y", {n}, in.dtype});
  all.push_back({"out", {n}, in.dtype, true});
  return all;
}

void add(GraphWriter& g, const KernelInput&) {
  g.node("add.Tensor", {g["x"], g["y"]}, {g["out"]}, "alpha=1");
}
void gelu(GraphWriter& g, const KernelInput&) { g.node("gelu", {g["x"]}, {g["out"]}); }
void silu_mul(GraphWriter& g, const KernelInput& in) {
  const std::uint32_t gate = g.temporary({in.size("elements")}, in.dtype);
  g.node("silu", {g["x"]}, {gate});
  g.node("mul.Tensor", {gate, g["y"]}, {g["out"]});
}

Operands cast_operands(const KernelInput& in) {
  const std::int64_t n = in.size("elements");
  return {{"x", {n}, in.dtype},
          {"out", {n}, in.dtype == DType::kFp32 ? DType::kBf16 : DType::kFp32, true}};
}
void cast(GraphWriter& g, const KernelInput&) { g.node("_to_copy", {g["x"]}, {g["out"]}); }

Operands sum_operands(const KernelInput& in) {
  return {{"x", {in.size("rows"), in.size("columns")}, in.dtype},
          {"out", {in.size("rows")}, in.dtype, true}};
}
void sum(GraphWriter& g, const KernelInput&) {
  g.node("sum.dim_IntList", {g["x"]}, {g["out"]}, "dim=[1] keepdim=0");
}

Operands transpose_operands(const KernelInput& in) {
  const std::int64_t r = in.size("rows"), c = in.size("columns");
  return {{"x", {r, c}, in.dtype}, {"out", {c, r}, in.dtype, true}};
}
void transpose(GraphWriter& g, const KernelInput& in) {
  const std::int64_t r = in.size("rows"), c = in.size("columns");
  g.node("clone", {g.view(g["x"], {c, r}, {1, c})}, {g["out"]});
}

Operands adamw_operands(const KernelInput& in) {
  const std::int64_t n = in.size("elements");
  return {{"p", {n}, in.dtype},
          {"grad", {n}, in.dtype},
          {"m", {n}, in.dtype},
          {"v", {n}, in.dtype},
          {"step", {1}, DType::kFp32}};
}
void adamw(GraphWriter& g, const KernelInput&) {
  g.node("_fused_adamw_", {g["p"], g["grad"], g["m"], g["v"], g["step"]}, {g["p"], g["m"], g["v"]},
         "lr=0.001 beta1=0.9 beta2=0.999 weight_decay=0.01 eps=1e-08 amsgrad=0 maximize=0");
}

}  // namespace

std::vector<KernelSpec> elementwise_kernels() {
  const std::vector<KernelParameter> elements{{"elements", 1 << 24, "of each operand"}};
  const std::vector<KernelParameter> matrix{{"rows", 4096, "of x"}, {"columns", 4096, "of x"}};
  return {
      {"add",
       "out = x + y",
       "residual connections; bound by memory",
       elements,
       kElementTypes,
       {},
       {"elements"},
       vectors<2>,
       build_graph<add>},
      {"gelu",
       "out = gelu(x)",
       "one activation on the Scalar engine",
       elements,
       kElementTypes,
       {},
       {"elements"},
       vectors<1>,
       build_graph<gelu>},
      {"silu_mul",
       "out = silu(x) · y",
       "the gate of SwiGLU, fused",
       elements,
       kElementTypes,
       {},
       {"elements"},
       vectors<2>,
       build_graph<silu_mul>},
      {"cast",
       "out = x as fp32 (fp32: as bf16)",
       "change of dtype",
       elements,
       kElementTypes,
       {},
       {"elements"},
       cast_operands,
       build_graph<cast>},
      {"sum",
       "out[rows] = Σ x[rows, columns]",
       "reduction along rows",
       matrix,
       kElementTypes,
       {},
       {"rows"},
       sum_operands,
       build_graph<sum>},
      {"transpose",
       "out[columns, rows] = x[rows, columns]ᵀ",
       "change of layout, 128 × 128 at a time on the Tensor engine",
       matrix,
       kElementTypes,
       {},
       {"rows"},
       transpose_operands,
       build_graph<transpose>},
      {"adamw",
       "p, m, v = AdamW(p, grad, m, v)",
       "the optimizer's update of one tensor, fused",
       elements,
       {DType::kFp32, DType::kBf16},
       {},
       {"elements"},
       adamw_operands,
       build_graph<adamw>},
  };
}

}  // namespace trellis::device
