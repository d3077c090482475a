#include <fmt/format.h>

#include "base/error.h"
#include "device/compiler/gemm/gemm_mx.h"
#include "device/kernels/builders.h"
#include "sim/isa/features.h"

/// To fp8 row by row, as a graph; to MX, whose scales belong to 32 neighbours, by the Vector
/// engine's own instruction.
namespace trellis::device {
namespace {

using sim::isa::DType;
using sim::isa::Opcode;

constexpr std::int64_t kP = 128, kPacked = 4, kWidth = 2048, kScaleRows = kMxGroup / kPacked;

Operands fp8_operands(const KernelInput& in) {
  return {{"x", {in.size("rows"), in.size("columns")}, in.dtype},
          {"out", {in.size("rows"), in.size("columns")}, DType::kFp8E4M3, true},
          {"scale", {in.size("rows"), 1}, DType::kFp32, true}};
}
/// The largest magnitude of a row becomes 240, the largest number of fp8 e4m3.
void write_fp8(GraphWriter& g, const KernelInput& in) {
  const std::int64_t rows = in.size("rows"), columns = in.size("columns");
  const std::uint32_t magnitude = g.temporary({rows, columns}, in.dtype),
                      top = g.temporary({rows, 1}, DType::kFp32);
  const std::uint32_t inverse = g.temporary({rows, 1}, DType::kFp32),
                      scaled = g.temporary({rows, columns}, DType::kFp32);
  g.node("abs", {g["x"]}, {magnitude});
  g.node("amax", {magnitude}, {top}, "dim=[1] keepdim=1");
  g.node("mul.Scalar", {top}, {g["scale"]}, "other=0.004166666667");
  g.node("reciprocal", {g["scale"]}, {inverse});
  g.node("mul.Tensor", {g["x"], inverse}, {scaled});
  g.node("_to_copy", {scaled}, {g["out"]});
}

bool to_mx(const KernelInput& in) {
  return sim::isa::is_mx(parse_dtype(in.request.variant).value());
}

/// As a product reads its operand: the contraction, which is a row's columns, lies over rows of
/// packed elements.
Operands quantised_operands(const KernelInput& in) {
  const std::int64_t rows = in.size("rows"), columns = in.size("columns");
  const int first = sim::isa::first_core_version(Opcode::kQuantizeMx);
  if (in.core().limits.core_version < first) {
    throw ConfigError(fmt::format("quantise.variant: {} has no {}: NeuronCore-v{} or later does",
                                  in.system.chip.generation, in.request.variant, first));
  }
  if (sim::isa::size_bytes(in.dtype) != 2)
    throw ConfigError(fmt::format("quantise.dtype: {} takes bf16 or fp16, got {}",
                                  in.request.variant, in.request.dtype));
  if (columns % kMxGroup != 0) {
    throw ConfigError(fmt::format(
        "quantise.columns: {} of them share a scale, so {} needs a multiple of it, got {}",
        kMxGroup, in.request.variant, columns));
  }
  return {{"x", {columns / kPacked, rows, kPacked}, in.dtype},
          {"out", {columns / kPacked, rows}, parse_dtype(in.request.variant).value(), true},
          {"scale", {columns / kMxGroup, rows}, DType::kUInt8, true}};
}

BuiltKernel build_mx(const KernelInput& in, const Operands& operands) {
  const std::int64_t rows = in.size("rows"), columns = in.size("columns");
  ProgramBuilder builder("quantise", in.core());
  std::vector<std::uint32_t> buffers;
  for (const KernelOperand& o : operands)
    buffers.push_back(
        builder.add_hbm(o.name, o.bytes(), static_cast<std::int32_t>(buffers.size())));
  const std::int64_t flops = 2 * rows * columns;  // a comparison and a product for each
  Phase phase(builder.add_kernel({"quantise", 0, flops, false}));
  const auto step = [&](const Index& tile, std::int64_t depth) {
    phase.tiles(rows, kWidth, [&](const Index& n, std::int64_t width) {
      const int partitions = static_cast<int>(depth), groups = static_cast<int>(depth / kScaleRows);
      const auto on_chip = [&](std::size_t o, int height, std::int64_t count) {
        return phase.at(phase.sbuf(count * sim::isa::size_bytes(operands[o].dtype), 3),
                        operands[o].dtype, height, row(count));
      };
      const auto in_hbm = [&](std::size_t o, int height, std::int64_t most, std::int64_t per_row) {
        return Phase::hbm(buffers[o], operands[o].dtype, height, per_row * rows,
                          row(per_row * width), tile * (most * per_row * rows) + n * per_row);
      };
      const Ref x = on_chip(0, partitions, kPacked * width), out = on_chip(1, partitions, width),
                scale = on_chip(2, groups, width);
      phase.load(x, in_hbm(0, partitions, kP, kPacked));
      phase.quantize_mx(out, scale, x);
      phase.store(in_hbm(1, partitions, kP, 1), out);
      phase.store(in_hbm(2, groups, kP / kScaleRows, 1), scale);
    });
  };
  const std::int64_t depth = columns / kPacked;
  phase.loop(depth / kP, [&](const Index& tile) { step(tile, kP); });
  if (depth % kP != 0) phase.scope([&] { step(depth / kP, depth % kP); });
  builder.append(std::move(phase));
  return {builder.finish(), flops, {}};
}

Operands quantise_operands(const KernelInput& in) {
  return to_mx(in) ? quantised_operands(in) : fp8_operands(in);
}
BuiltKernel build_quantise(const KernelInput& in, const Operands& operands) {
  return to_mx(in) ? build_mx(in, operands) : build_graph<write_fp8>(in, operands);
}

}  // namespace

KernelSpec quantise_kernel() {
  return {
      "quantise",
      "scale = max|x| / 240 of a row, out = x / scale as fp8 e4m3; mx: a power of two for each 32 "
      "columns",
      "quantisation for products: per row to fp8, or to the packed operands of matmul --dtype "
      "mxfp8",
      {{"rows", 4096, "vectors, e.g. tokens"},
       {"columns", 4096, "elements of a vector, e.g. hidden size: the contraction of the product"}},
      {DType::kBf16, DType::kFp32, DType::kFp16},
      {"fp8e4m3", "mxfp8", "mxfp8_e5m2"},
      {"rows"},
      quantise_operands,
      build_quantise};
}

}  // namespace trellis::device
