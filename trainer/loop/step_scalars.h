#pragma once

#include <map>
#include <string>

namespace trellis::trainer {

struct RunConfig;
struct StepResult;

/// What is logged of a step, by NxDT's tags (nxdt-features §8.1): what rank 0 knows of it, without
/// the simulated numbers.
[[nodiscard]] std::map<std::string, double> scalars_of(const StepResult& result,
                                                       const RunConfig& config);

}  // namespace trellis::trainer
