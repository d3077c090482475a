#pragma once

#include <string>
#include <vector>

#include "device/kernels/kernel.h"
#include "sim/sim.h"

namespace trellis::analysis {

/// A kernel on one core of an instance, with some hardware numbers changed ("key=value").
[[nodiscard]] device::KernelTiming run_kernel(const std::string& instance,
                                              const device::KernelRequest& request,
                                              const std::vector<std::string>& overrides = {});

/// A collective over the first `ranks` logical cores of a cluster.
struct CollectiveCase {
  std::string instance;
  int nodes = 1;
  int ranks = 2;
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::int64_t bytes = 1 << 20;
  std::optional<sim::Algorithm> algorithm = {};
  [[nodiscard]] std::string describe() const;
};
[[nodiscard]] sim::CollectiveTiming run_collective(const CollectiveCase& which,
                                                   const std::vector<std::string>& overrides = {});

/// Hardware numbers that are rates (B/s, bit/s, Hz): faster is larger.
[[nodiscard]] std::vector<sim::Parameter> rate_parameters(const std::string& instance);
/// "key=value" with the value multiplied.
[[nodiscard]] std::string scaled(const sim::Parameter& parameter, double factor);

}  // namespace trellis::analysis
