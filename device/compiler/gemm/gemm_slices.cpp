#include "device/compiler/gemm/gemm_slices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/gemm/gemm_plan.h"
#include "device/compiler/gemm/gemm_shape.h"

namespace trellis::device {
namespace {

using isa::DType;

/// A product in `count` slices of K.
std::vector<Gemm> sliced(const Gemm& gemm, std::int64_t count, const HbmView& sum) {
  const std::size_t r = gemm.c.rank();
  const std::int64_t k = gemm.a.sizes[r - 1], step = ceil_div(ceil_div(k, kP), count) * kP;
  std::vector<Gemm> parts;
  for (std::int64_t k0 = 0; k0 < k; k0 += step) {
    Gemm part = gemm;
    part.a.offset += k0 * gemm.a.strides[r - 1];
    part.b.offset += k0 * gemm.b.strides[r - 2];
    part.a.sizes[r - 1] = part.b.sizes[r - 2] = std::min(step, k - k0);
    if (k0 > 0) part.addend = sum, part.beta = 1;
    if (k0 + step < k) part.c = sum, part.activated.reset(), part.factor.reset();
    parts.push_back(std::move(part));
  }
  return parts;
}

double seconds_of(const Gemm& gemm, const ProgramBuilder& builder) {
  const GemmShape shape = gemm_shape(gemm, builder.core());
  const GemmPlan plan = choose_gemm_plan(shape, builder.core(), builder.sbuf_bytes());
  return plan.block == 0 ? std::numeric_limits<double>::infinity()
                         : estimated_seconds(shape, plan, builder.core());
}

}  // namespace

std::vector<Gemm> best_slices(ProgramBuilder& builder, const Gemm& gemm) {
  const std::int64_t k = gemm.a.sizes[gemm.c.rank() - 1];
  const std::int64_t least = ceil_div(k, 64 * kP * 2 / isa::size_bytes(gemm.a.dtype)),
                     most = std::max(least, std::min<std::int64_t>(4 * least, k / 1024));
  HbmView sum = contiguous(0, DType::kFp32, gemm.c.sizes);
  std::vector<Gemm> best;
  double shortest = std::numeric_limits<double>::infinity();
  for (std::int64_t count = least; count <= most; count *= 2) {
    std::vector<Gemm> parts = sliced(gemm, count, sum);
    double seconds = 0;
    for (const Gemm& part : parts) seconds += seconds_of(part, builder);
    if (seconds < shortest * (best.empty() ? 1 : builder.core().planning.product_cut_gain))
      shortest = seconds, best = std::move(parts);
  }
  TRELLIS_CHECK(!best.empty(), "no block of a matrix product fits in SBUF");
  if (best.size() == 1) return best;
  sum = contiguous(builder.scratch(gemm.c.elements() * 4), DType::kFp32, gemm.c.sizes);
  return sliced(gemm, static_cast<std::int64_t>(best.size()), sum);
}

}  // namespace trellis::device
