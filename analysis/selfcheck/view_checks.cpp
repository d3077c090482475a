// Operations on views: what a compiler lays out anew must not be fetched element by element.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "analysis/selfcheck/sanity_check.h"
#include "analysis/selfcheck/view_modules.h"
#include "device/compiler/compile.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"

namespace trellis::analysis {
namespace {

constexpr int kModules = 200;
constexpr double kManyRooflines = 20, kTooManyRooflines = 64;

/// Seconds of the larger of what memory and Vector, an element a cycle on each partition, take.
double roofline_seconds(const ViewModule& module, const sim::SystemConfig& system) {
  const sim::DmaConfig& dma = system.chip.core.dma;
  // A transfer from HBM to HBM moves two operands' bytes at once.
  const double rate =
      std::min(system.hbm_stack_bandwidth().value, 2 * dma.engine_rate.value * dma.engines);
  return std::max(static_cast<double>(module.bytes) / rate,
                  static_cast<double>(module.elements) /
                      (system.chip.core.limits.partitions * system.chip.core.vector.clock.value));
}

Finding no_view_is_moved_by_element() {
  sim::LoadOptions physical;
  physical.logical_core_size = 1;
  const sim::SystemConfig system = sim::load_system("trn2.48xlarge", physical);
  sim::Simulator simulator(system);
  double worst = 0;
  int many = 0;
  std::string name;
  for (int seed = 0; seed < kModules; ++seed) {
    const ViewModule module =
        random_view_module(static_cast<std::uint32_t>(seed), ViewSize::kMillion);
    const device::CompiledGraph compiled = device::compile(module.graph, system.chip.core);
    Picoseconds time;
    for (const auto& segment : simulator.time_program(compiled.program).segments)
      time += segment.duration;
    const double rooflines = seconds(time) / roofline_seconds(module, system);
    many += rooflines > kManyRooflines ? 1 : 0;
    if (rooflines > worst) worst = rooflines, name = module.name;
  }
  return {worst <= kTooManyRooflines,
          fmt::format("{} random modules on a core of Trn2, {} above {:.0f} times the roofline, "
                      "most {:.1f} times: {}",
                      kModules, many, kManyRooflines, worst, name)};
}

}  // namespace

std::vector<SanityCheck> view_checks() {
  return {{"views", "no operation takes 64 times its roofline, whatever its views",
           no_view_is_moved_by_element}};
}

}  // namespace trellis::analysis
