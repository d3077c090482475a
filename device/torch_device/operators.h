#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

namespace trellis::device {

/// Checks the operators in a trellis.portability/1 document and those that every run needs: which
/// ones LibTorch has no kernel of for `device` (lacking), and which it hands to the device's
/// fallback, mostly to the CPU (falls_back). Schema trellis.device_operators/1. Whether a kernel
/// accepts a type that it may lack shows only when it runs.
[[nodiscard]] nlohmann::json check_operators(const nlohmann::json& portability, c10::Device device);

}  // namespace trellis::device
