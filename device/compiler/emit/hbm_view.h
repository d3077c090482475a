#pragma once

#include <cstdint>
#include <vector>

#include "sim/isa/types.h"

namespace trellis::device {

/// A strided view of a program's HBM buffer, with the device's dtype.
struct HbmView {
  std::uint32_t buffer = 0;
  sim::isa::DType dtype = sim::isa::DType::kFp32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;

  [[nodiscard]] std::size_t rank() const { return sizes.size(); }
  [[nodiscard]] std::int64_t elements() const;
};

/// fp64 and int64 exist on the host only.
[[nodiscard]] sim::isa::DType device_dtype(sim::isa::DType host);

/// Merges neighbouring dimensions wherever every view of `strides` (one vector per view, all over
/// `sizes`) allows it; drops size 1. At least one dimension is left.
void collapse(std::vector<std::int64_t>& sizes, std::vector<std::vector<std::int64_t>>& strides);

/// The view with dimensions `first` and `second` exchanged.
[[nodiscard]] HbmView transposed(HbmView view, std::size_t first, std::size_t second);

/// A contiguous view of the same sizes over another buffer.
[[nodiscard]] HbmView contiguous(std::uint32_t buffer, sim::isa::DType dtype,
                                 const std::vector<std::int64_t>& sizes);

/// Splits the dimensions of two shapes of equal element count so that both have the same ones;
/// false when they do not fit together.
bool common_refinement(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b,
                       std::vector<std::int64_t>& refined);

/// Strides over `refined`, a splitting of `sizes`.
[[nodiscard]] std::vector<std::int64_t> refine_strides(const std::vector<std::int64_t>& sizes,
                                                       const std::vector<std::int64_t>& strides,
                                                       const std::vector<std::int64_t>& refined);

}  // namespace trellis::device
