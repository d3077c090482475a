#include "sim/isa/extent.h"

namespace trellis::sim::isa {
namespace {

void widen(Extent& extent, std::int64_t stride, std::int64_t count) {
  const std::int64_t reach = stride * (count - 1);
  (reach < 0 ? extent.first : extent.last) += reach;
}

}  // namespace

Extent tile_extent(const AccessPattern& operand, MemorySpace space) {
  Extent extent{operand.offset, operand.offset};
  for (int d = 0; d < operand.num_dims; ++d)
    widen(extent, operand.dims[d].stride, operand.dims[d].count);
  if (space == MemorySpace::kHbm) widen(extent, operand.partition_stride, operand.num_partitions);
  return extent;
}

Extent full_extent(const AccessPattern& operand, MemorySpace space,
                   std::span<const std::int64_t> loop_counts) {
  Extent extent = tile_extent(operand, space);
  for (std::size_t d = 0; d < loop_counts.size() && d < operand.loop_stride.size(); ++d) {
    widen(extent, operand.loop_stride[d], loop_counts[d]);
  }
  widen(extent, operand.rotate_stride, operand.rotate_count);
  return extent;
}

}  // namespace trellis::sim::isa
