#include <fmt/format.h>

#include "analysis/selfcheck/sanity_check.h"
#include "analysis/selfcheck/workloads.h"
#include "device/kernels/catalogue.h"
#include "sim/config/load_system.h"

namespace trellis::analysis {
namespace {

constexpr const char* kInstances[] = {"trn1.32xlarge", "trn2.48xlarge"};

device::KernelRequest matmul(std::int64_t size) {
  return {.name = "matmul",
          .sizes = {{"m", size}, {"k", size}, {"n", size}},
          .dtype = "bf16",
          .variant = "",
          .cores = 1};
}

/// Every kernel of the catalogue at its default sizes: FLOPs against the array's peak, bytes
/// against HBM's and the DMA engines' rates.
Finding no_kernel_beats_its_bounds() {
  int kernels = 0;
  double best = 0;
  for (const char* instance : kInstances) {
    sim::LoadOptions physical;
    physical.logical_core_size = 1;
    const sim::SystemConfig system = sim::load_system(instance, physical);
    sim::Simulator simulator(system);
    const double hbm = system.hbm_stack_bandwidth().value;
    for (const device::KernelSpec& spec : device::kernel_catalogue()) {
      device::KernelRequest request;
      request.name = spec.name;
      const device::KernelTiming timing = device::time_kernel(request, system, simulator);
      const double bytes = static_cast<double>(timing.hbm_read.value + timing.hbm_written.value);
      const double moved = bytes / seconds(timing.device_time) / hbm;
      if (timing.mfu > 1)
        return {false, fmt::format("{} on {} reaches {:.1f} % of the peak", spec.name, instance,
                                   100 * timing.mfu)};
      if (moved > 1)
        return {false, fmt::format("{} on {} moves {:.1f} % of HBM's rate", spec.name, instance,
                                   100 * moved)};
      best = std::max({best, timing.mfu, moved});
      ++kernels;
    }
  }
  return {true, fmt::format("{} kernels, at most {:.1f} % of a peak", kernels, 100 * best)};
}

/// The segments of a program that does the same thing three times.
Finding equal_layers_take_equal_time() {
  for (const char* instance : kInstances) {
    sim::LoadOptions physical;
    physical.logical_core_size = 1;
    const sim::SystemConfig system = sim::load_system(instance, physical);
    sim::Simulator simulator(system);
    device::KernelRequest request = device::complete(matmul(1024), system);
    sim::isa::Program program = device::build_kernel(request, system).program;
    const std::vector<sim::isa::Segment> once = program.segments;
    for (int copy = 0; copy < 2; ++copy)
      program.segments.insert(program.segments.end(), once.begin(), once.end());
    const sim::CoreTiming timing = simulator.time_program(program);
    for (std::size_t i = once.size(); i < timing.segments.size(); ++i) {
      if (timing.segments[i] == timing.segments[i - once.size()]) continue;
      return {false, fmt::format("{}: {} ps and {} ps", instance,
                                 timing.segments[i - once.size()].duration.value,
                                 timing.segments[i].duration.value)};
    }
  }
  return {true, "three equal matmuls in one program, on Trn1 and Trn2, to the picosecond"};
}

Finding the_same_twice() {
  for (const char* instance : kInstances) {
    const Picoseconds first = run_kernel(instance, matmul(2048)).device_time;
    const Picoseconds second = run_kernel(instance, matmul(2048)).device_time;
    if (first != second)
      return {false, fmt::format("{}: {} ps, then {} ps", instance, first.value, second.value)};
  }
  return {true, "matmul 2048, to the picosecond"};
}

Finding more_work_takes_longer() {
  std::string detail;
  for (const char* instance : kInstances) {
    Picoseconds before;
    for (const std::int64_t size : {512, 1024, 2048, 4096}) {
      const Picoseconds time = run_kernel(instance, matmul(size)).device_time;
      if (time <= before)
        return {false, fmt::format("{}: matmul {} is not slower than the next smaller one",
                                   instance, size)};
      before = time;
    }
    detail += fmt::format("{}{}: matmul 4096 in {:.0f} us", detail.empty() ? "" : ", ", instance,
                          seconds(before) * 1e6);
  }
  return {true, detail};
}

}  // namespace

std::vector<SanityCheck> core_checks() {
  return {
      {"peaks", "no kernel beats the array's FLOP/s or HBM's bandwidth",
       no_kernel_beats_its_bounds},
      {"equal-layers", "equal layers take equal time", equal_layers_take_equal_time},
      {"repeatable", "the same input gives the same picosecond", the_same_twice},
      {"more-is-longer", "more work takes longer", more_work_takes_longer},
  };
}

}  // namespace trellis::analysis
