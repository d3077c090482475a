#pragma once

#include <string_view>

namespace trellis::sim {

/// Version of the model behind every predicted time: its mechanisms and the numbers of sim/configs.
/// It grows with each change that moves predictions by more than rounding; docs/model-versions.md
/// says what moved and why.
inline constexpr std::string_view kModelVersion = "2";

}  // namespace trellis::sim
