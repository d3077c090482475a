#pragma once

#include <c10/core/Stream.h>

namespace trellis::device {

/// Streams as TorchNeuron has them: stream 0 is the default; unless NEURON_RT_ENABLE_HOST_CC=1,
/// asking for a new one returns it. With it, a pool of three per device is handed out cyclically.
/// Operations run when they are called, in every stream; what streams change is the simulated
/// clock. Priorities do not exist on the machine. A device without index is the current one.
[[nodiscard]] c10::Stream default_stream(c10::Device device);
[[nodiscard]] c10::Stream current_stream(c10::Device device);
[[nodiscard]] c10::Stream pool_stream(c10::Device device);
/// Makes `stream` the calling thread's current one on its device and returns the one before.
c10::Stream exchange_stream(const c10::Stream& stream);
/// Throws, naming the valid streams, when no such stream was handed out.
void check_stream(const c10::Stream& stream);

}  // namespace trellis::device
