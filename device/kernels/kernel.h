#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"

/// One kernel by itself on one chip: what `trellis kernel` and `trellis accuracy kernels` ask for.
/// Kernels are the graph compiler's own lowerings, over one operation's operands in HBM.
namespace trellis::device {

/// The kernel to run and its operands. Parts that are left out take the catalogue's defaults.
struct KernelRequest {
  std::string name;                           ///< of the catalogue, e.g. "matmul"
  std::map<std::string, std::int64_t> sizes;  ///< by parameter, e.g. {"m", 2048}; flags are 0 or 1
  std::string dtype;                          ///< "bf16", "fp32", …
  std::string variant;                        ///< e.g. "tiled"
  int cores = 1;  ///< physical cores that share the work: 1, or the 2 of one logical core
};

/// The resource that bounds a kernel's time.
enum class KernelBound : std::uint8_t { kTensor, kVector, kScalar, kGpSimd, kDma, kHbm, kLaunch };
[[nodiscard]] std::string_view name(KernelBound);

struct KernelTiming {
  KernelRequest request;       ///< complete: with every default filled in
  Picoseconds device_time;     ///< what a profiler reports: from the program's start to its stop
  Picoseconds benchmark_time;  ///< what one execution costs in a benchmark's loop: device time +
                               ///< launch.benchmark_overhead
  std::int64_t flops = 0;      ///< of the operation, whatever the program does for it
  FlopsPerSecond peak;       ///< MFU's denominator: the array's rate at this dtype, over all cores
  double mfu = 0;            ///< flops / device time / peak
  double benchmark_mfu = 0;  ///< flops / benchmark time / peak
  FlopsPerSecond peak_bf16;  ///< over all cores: the denominator that profilers use for every dtype
  std::array<Picoseconds, sim::kNumTracks>
      busy{};                                ///< engines, then DMA queue groups; the busiest core's
  Bytes operand_bytes;                       ///< operands once: the least that must move
  Bytes dma_bytes;                           ///< moved by DMA engines, all cores
  Bytes hbm_read, hbm_written;               ///< all cores
  KernelBound bound = KernelBound::kLaunch;  ///< which unit needs the longest
  sim::Evidence evidence =
      sim::Evidence::kSpec;  ///< the worst of the parameters of the unit that bounds it
  std::vector<std::string>
      estimated;              ///< operations that were costed without executable instructions
  Picoseconds compute_bound;  ///< flops / peak
  Picoseconds memory_bound;   ///< operand bytes over the HBM stack or through the DMA engines,
                              ///< whichever is slower
  std::vector<sim::CoreTiming> cores;  ///< one per physical core
  std::vector<std::string> phases;     ///< names of the program's kernels, for traces
};

/// Compiles a kernel for the cores of `system` and runs it. REQUIRES: `system` was loaded with a
/// logical core of one physical core. Throws ConfigError for an unknown kernel (with the nearest
/// name), parameter, variant, dtype or size, and Error (kDoesNotFit) when the operands are larger
/// than the cores' HBM.
[[nodiscard]] KernelTiming time_kernel(const KernelRequest& request,
                                       const sim::SystemConfig& system, sim::Simulator& simulator,
                                       const sim::TimeOptions& options = {});

}  // namespace trellis::device
