#include "device/compiler/gemm/gemm_shape.h"

#include <optional>

#include "device/compiler/gemm/array_sizes.h"
#include "sim/isa/features.h"

namespace trellis::device {

bool k_is_contiguous(const HbmView& v, std::size_t rows, std::size_t depth) {
  return v.strides[depth] == 1 && (v.strides[rows] != 1 || v.sizes[rows] == 1);
}

std::int64_t k_tiles_per_pass(const Gemm& gemm, int core_version) {
  const bool fp8 = isa::is_fp8(gemm.a.dtype) && isa::is_fp8(gemm.b.dtype);
  return fp8 && core_version >= isa::first_core_version(isa::MatmulMode::kDoubleRow) &&
                 gemm.a.sizes.back() % (2 * kP) == 0
             ? 2
             : 1;
}

GemmShape gemm_shape(const Gemm& gemm, const sim::CoreConfig& core) {
  const std::size_t r = gemm.c.rank();
  const auto size = [](const std::optional<HbmView>& v) {
    return v ? isa::size_bytes(v->dtype) : 0;
  };
  const double passes =
      (gemm.four_passes && gemm.a.dtype == isa::DType::kFp32 ? core.tensor.fp32_passes : 1) /
      static_cast<double>(k_tiles_per_pass(gemm, core.limits.core_version));
  return {gemm.c.sizes[r - 2],
          gemm.c.sizes[r - 1],
          gemm.a.sizes[r - 1],
          size(gemm.a),
          size(gemm.b),
          size(gemm.c),
          k_is_contiguous(gemm.a, r - 2, r - 1),
          k_is_contiguous(gemm.b, r - 1, r - 2),
          size(gemm.addend),
          size(gemm.activated ? gemm.activated : gemm.factor),
          passes};
}

}  // namespace trellis::device
