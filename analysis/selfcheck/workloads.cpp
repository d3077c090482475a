#include "analysis/selfcheck/workloads.h"
#include "sim/config/load_system.h"

#include <fmt/format.h>

#include <numeric>

namespace trellis::analysis {
namespace {

sim::SystemConfig machine(const std::string& instance, int nodes, int logical_core_size,
                          const std::vector<std::string>& overrides) {
  sim::LoadOptions options;
  options.nodes = nodes;
  if (logical_core_size > 0) options.logical_core_size = logical_core_size;
  options.overrides = overrides;
  return sim::load_system(instance, options);
}

}  // namespace

device::KernelTiming run_kernel(const std::string& instance, const device::KernelRequest& request,
                                const std::vector<std::string>& overrides) {
  const sim::SystemConfig system = machine(instance, 1, 1, overrides);
  sim::Simulator simulator(system);
  return device::time_kernel(request, system, simulator);
}

std::string CollectiveCase::describe() const {
  return fmt::format("{} of {} B, {} ranks, {} x {}", sim::name(kind), bytes, ranks, nodes,
                     instance);
}

sim::CollectiveTiming run_collective(const CollectiveCase& which,
                                     const std::vector<std::string>& overrides) {
  sim::CollectiveRequest request;
  request.kind = which.kind;
  request.cores.resize(static_cast<std::size_t>(which.ranks));
  std::iota(request.cores.begin(), request.cores.end(), 0);
  request.size = Bytes(which.bytes);
  request.element_bytes = 4;
  request.algorithm = which.algorithm;
  return sim::time_collective(machine(which.instance, which.nodes, 0, overrides), request);
}

std::vector<sim::Parameter> rate_parameters(const std::string& instance) {
  std::vector<sim::Parameter> rates;
  for (const sim::Parameter& p : sim::load_system(instance).parameters) {
    if (p.value.ends_with("B/s") || p.value.ends_with("bps") || p.value.ends_with("Hz"))
      rates.push_back(p);
  }
  return rates;
}

std::string scaled(const sim::Parameter& parameter, double factor) {
  const std::size_t space = parameter.value.find(' ');
  return fmt::format("{}={}{}", parameter.key, std::stod(parameter.value) * factor,
                     parameter.value.substr(space));
}

}  // namespace trellis::analysis
