#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/driver/timing/step_timing.h"

namespace trellis::device {

/// Schema trellis.step_report/1.
[[nodiscard]] nlohmann::json step_report(std::int64_t step_number, const StepTiming& step,
                                         const std::vector<const StepStream*>& streams,
                                         const std::vector<const std::vector<Graph>*>& graphs,
                                         const sim::SystemConfig& system);

/// Communications of the rank that ends last, by axis, of which a rank waits for a part only:
/// `transfer_ps` from all participants being there to the end, `exposed_ps` the share of it in
/// which the rank waited; and `overlap`: for how long any communication moves bytes (`moving_ps`),
/// and for how much of it the core computes (`computing_ps`). The step report's `communication`.
[[nodiscard]] nlohmann::json communication(const StepTiming& step);

}  // namespace trellis::device
