#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace trellis::device {

/// A generator of device `neuron:index`. Inside works its own CPU generator: for one seed the
/// device draws the numbers that the CPU would draw.
[[nodiscard]] at::Generator make_generator(c10::DeviceIndex index);

/// The CPU generator in one of make_generator.
[[nodiscard]] at::Generator drawing_generator(const at::Generator& generator);

}  // namespace trellis::device
