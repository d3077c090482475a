#include <fmt/format.h>

#include "base/error.h"
#include "device/compiler/gemm/gemm.h"
#include "device/compiler/gemm/gemm_mx.h"
#include "device/compiler/gemm/gemm_tilings.h"
#include "device/compiler/gemm/lower_gemm.h"
#include "device/kernels/builders.h"

namespace trellis::device {
namespace {

using sim::isa::DType;

/// tf32 operands lie in memory as fp32.
DType stored_dtype(DType dtype) { return dtype == DType::kTf32 ? DType::kFp32 : dtype; }
/// The sum leaves in the operands' dtype; fp8 and MX types cannot hold it.
DType result_dtype(DType dtype) {
  return sim::isa::is_mx(dtype) || sim::isa::is_fp8(dtype) ? DType::kBf16 : stored_dtype(dtype);
}

/// The plain loop orders know whole tiles only.
std::optional<GemmTiling> tiling_of(const KernelInput& in) {
  const std::string& variant = in.request.variant;
  if (variant == "blocked") return std::nullopt;
  if (!in.flag("lhs_transposed") || in.flag("rhs_transposed") || in.size("m") % 256 != 0 ||
      in.size("k") % 256 != 0 || in.size("n") % 1024 != 0) {
    throw ConfigError(fmt::format(
        "matmul: variant {} needs --lhs-transposed without --rhs-transposed, m and k as multiples "
        "of 256 and n of 1024, got {} x {} x {}; variant blocked takes any",
        variant, in.size("m"), in.size("k"), in.size("n")));
  }
  return variant == "tiled"     ? GemmTiling::kTiled
         : variant == "hoisted" ? GemmTiling::kHoisted
                                : GemmTiling::kBlockedFree;
}

/// Four neighbours of k are one element, 32 of them have a scale.
Operands mx_operands(const KernelInput& in) {
  const std::int64_t m = in.size("m"), k = in.size("k"), n = in.size("n");
  if (k % kMxGroup != 0)
    throw ConfigError(fmt::format(
        "matmul.k: {} of the contraction share a scale, so {} needs a multiple of it, got {}",
        kMxGroup, in.request.dtype, k));
  for (const char* side : {"lhs_transposed", "rhs_transposed"}) {
    if (in.flag(side))
      throw ConfigError(fmt::format(
          "matmul.{}: {} operands lie in one layout only, packed along k: leave it at 0", side,
          in.request.dtype));
  }
  if (in.request.variant != "blocked")
    throw ConfigError(fmt::format("matmul.variant: {} knows \"blocked\" only, got \"{}\"",
                                  in.request.dtype, in.request.variant));
  return {{"a", {k / 4, m}, in.dtype},
          {"a_scales", {k / kMxGroup, m}, DType::kUInt8},
          {"b", {k / 4, n}, in.dtype},
          {"b_scales", {k / kMxGroup, n}, DType::kUInt8},
          {"c", {m, n}, result_dtype(in.dtype), true}};
}

void lower(ProgramBuilder& builder, std::uint32_t kernel, const KernelInput& in,
           const std::vector<HbmView>& views) {
  if (sim::isa::is_mx(in.dtype))
    return lower_mx_gemm(builder, kernel, {{views[0], views[1]}, {views[2], views[3]}, views[4]});
  Gemm gemm;
  gemm.a = in.flag("lhs_transposed") ? transposed(views[0], 0, 1) : views[0];
  gemm.b = in.flag("rhs_transposed") ? transposed(views[1], 0, 1) : views[1];
  gemm.c = views[2];
  gemm.four_passes = in.dtype == DType::kFp32;
  if (const auto tiling = tiling_of(in)) return lower_gemm_tiling(builder, kernel, gemm, *tiling);
  lower_gemm(builder, kernel, gemm);
}

}  // namespace

Operands matmul_operands(const KernelInput& in) {
  if (sim::isa::is_mx(in.dtype)) return mx_operands(in);
  const std::int64_t m = in.size("m"), k = in.size("k"), n = in.size("n");
  const DType stored = stored_dtype(in.dtype);
  return {{"a", in.flag("lhs_transposed") ? std::vector{k, m} : std::vector{m, k}, stored},
          {"b", in.flag("rhs_transposed") ? std::vector{n, k} : std::vector{k, n}, stored},
          {"c", {m, n}, result_dtype(in.dtype), true}};
}

BuiltKernel build_matmul(const KernelInput& in, const Operands& operands) {
  const std::int64_t m = in.size("m"), k = in.size("k"), n = in.size("n");
  ProgramBuilder builder("matmul", in.core());
  std::vector<HbmView> views;
  for (const KernelOperand& o : operands) {
    const auto slot = static_cast<std::int32_t>(views.size());
    views.push_back(contiguous(builder.add_hbm(o.name, o.bytes(), slot), o.dtype, o.sizes));
  }
  BuiltKernel built;
  built.flops = 2 * m * n * k;
  lower(builder, builder.add_kernel({"matmul", 0, built.flops, false}), in, views);
  built.program = builder.finish();
  return built;
}

}  // namespace trellis::device
