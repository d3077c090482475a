#include "device/driver/timing/kernel_advance.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace trellis::device {

std::vector<KernelAdvance> kernel_advances(const sim::SegmentTiming& segment) {
  struct Work {
    Picoseconds end, engine, dma;  ///< the last end, and the busiest of each sort
  };
  std::map<std::uint32_t, Work> kernels;
  for (const sim::KernelSlice& slice : segment.slices) {
    Work& work = kernels[slice.kernel];
    work.end = std::max(work.end, slice.end);
    Picoseconds& busiest = slice.track < sim::isa::kNumEngines ? work.engine : work.dma;
    busiest = std::max(busiest, slice.busy);
  }
  std::vector<KernelAdvance> advances;
  for (const auto& [kernel, work] : kernels)
    advances.push_back({kernel, {}, work.end, work.dma > work.engine});
  std::sort(advances.begin(), advances.end(), [](const KernelAdvance& a, const KernelAdvance& b) {
    return std::tie(a.to, a.kernel) < std::tie(b.to, b.kernel);
  });
  for (std::size_t i = 1; i < advances.size(); ++i) advances[i].from = advances[i - 1].to;
  return advances;
}

}  // namespace trellis::device
