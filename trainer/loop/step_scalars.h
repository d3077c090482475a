#pragma once

#include <map>
#include <string>

namespace trellis::trainer {

struct RunConfig;
struct StepResult;

/// The scalars of a step that are logged, by NxDT's tags (nxdt-features §8.1): those that rank 0
/// knows, without the simulated ones.
[[nodiscard]] std::map<std::string, double> scalars_of(const StepResult& result,
                                                       const RunConfig& config);

}  // namespace trellis::trainer
