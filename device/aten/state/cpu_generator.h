#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace trellis::device {

/// The CPU generator that a kernel on `device` draws from. `given` undefined: the device's default.
/// Throws for a CPU generator or one of another device, as PyTorch does.
[[nodiscard]] at::Generator cpu_generator(const at::Generator& given, c10::Device device);

}  // namespace trellis::device
