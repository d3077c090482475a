#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "device/kernels/catalogue.h"
#include "device/kernels/kernel.h"

namespace trellis::device {
namespace {

namespace isa = sim::isa;

constexpr std::array<std::string_view, 7> kBoundNames{"tensor", "vector", "scalar", "gpsimd",
                                                      "dma",    "hbm",    "launch"};
/// Which numbers of the machine make each bound.
constexpr std::array<std::string_view, 7> kBoundParameters{
    "core.tensor.", "core.vector.",       "core.scalar.",        "core.gpsimd.",
    "core.dma.",    "chip.hbm_bandwidth", "launch.program_start"};

sim::Evidence evidence_of(KernelBound bound, const sim::SystemConfig& system) {
  sim::Evidence worst = sim::Evidence::kSpec;
  for (const sim::Parameter& p : system.parameters) {
    if (p.key.starts_with(kBoundParameters[static_cast<std::size_t>(bound)]))
      worst = std::max(worst, p.evidence);
  }
  return worst;
}

Picoseconds time_of(double seconds) {
  return Picoseconds(static_cast<std::int64_t>(seconds * kPicosecondsPerSecond));
}

/// Adds what one core did; cores run side by side.
void add_core(KernelTiming& t, const sim::CoreTiming& core, Picoseconds& longest) {
  Picoseconds duration;
  std::array<Picoseconds, sim::kNumTracks> busy{};
  for (const sim::SegmentTiming& s : core.segments) {
    duration += s.duration;
    t.hbm_read += s.hbm_read;
    t.hbm_written += s.hbm_written;
    for (std::size_t track = 0; track < busy.size(); ++track) busy[track] += s.busy[track];
    for (const sim::KernelSlice& slice : s.slices) t.dma_bytes += slice.bytes;
  }
  if (duration >= longest) {
    longest = duration;
    t.busy = busy;
  }
}

KernelBound bound_of(const KernelTiming& t, const sim::SystemConfig& system) {
  std::array<Picoseconds, 7> needed{};
  for (std::size_t e = 0; e < 4; ++e) needed[e] = t.busy[e];
  for (std::size_t q = sim::isa::kNumEngines; q < t.busy.size(); ++q)
    needed[4] = std::max(needed[4], t.busy[q]);
  const double bandwidth =
      system.hbm_stack_bandwidth().value;  // one core alone may use it all; two of a pair share it
  needed[5] = time_of(static_cast<double>((t.hbm_read + t.hbm_written).value) / bandwidth);
  needed[6] = system.launch.program_start;
  return static_cast<KernelBound>(std::max_element(needed.begin(), needed.end()) - needed.begin());
}

void derive(KernelTiming& t, const sim::SystemConfig& system) {
  const double cores = t.request.cores;
  const auto rate = [&](Picoseconds time) {
    return static_cast<double>(t.flops) / to_seconds(time);
  };
  t.peak = peak_rate(parse_dtype(t.request.dtype).value(), system) * cores;
  t.peak_bf16 = system.chip.peak_bf16_core * cores;
  t.mfu = rate(t.device_time) / t.peak.value;
  t.benchmark_mfu = rate(t.benchmark_time) / t.peak.value;
  t.bound = bound_of(t, system);
  t.evidence = evidence_of(t.bound, system);
  t.compute_bound = time_of(static_cast<double>(t.flops) / t.peak.value);
  const double engines =
      system.chip.core.dma.engine_rate.value * system.chip.core.dma.engines * cores;
  // A transfer from HBM to HBM moves two operands' bytes at once.
  t.memory_bound = time_of(static_cast<double>(t.operand_bytes.value) /
                           std::min(system.hbm_stack_bandwidth().value, 2 * engines));
}

}  // namespace

std::string_view name(KernelBound bound) { return kBoundNames[static_cast<std::size_t>(bound)]; }

KernelTiming time_kernel(const KernelRequest& request, const sim::SystemConfig& system,
                         sim::Simulator& simulator, const sim::TimeOptions& options) {
  if (system.instance.logical_core_size != 1) {
    throw ConfigError(
        fmt::format("{}: kernels are timed on physical cores: load the instance with a logical "
                    "core size of 1, got {}",
                    request.name, system.instance.logical_core_size));
  }
  KernelTiming t;
  t.request = complete(request, system);
  for (const KernelOperand& o : kernel_operands(t.request, system)) {
    t.operand_bytes += Bytes(o.elements_moved() * sim::isa::size_bytes(o.dtype));
  }
  std::vector<isa::Program> programs;
  for (const KernelRequest& part : split_over_cores(t.request)) {
    BuiltKernel built = build_kernel(part, system);
    t.flops += built.flops;
    t.estimated = std::move(built.estimated);
    programs.push_back(std::move(built.program));
  }
  for (const auto& kernel : programs.front().kernels) t.phases.push_back(kernel.name);
  if (programs.size() == 1) {
    t.cores = {simulator.time_program(programs.front(), options)};
  } else {
    const sim::PairTiming pair = simulator.time_pair(programs[0], programs[1], options);
    t.cores.assign(pair.cores.begin(), pair.cores.end());
  }
  Picoseconds longest;
  for (const sim::CoreTiming& core : t.cores) add_core(t, core, longest);
  t.device_time = longest + system.launch.program_start;
  t.benchmark_time = t.device_time + system.launch.benchmark_overhead;
  derive(t, system);
  return t;
}

}  // namespace trellis::device
