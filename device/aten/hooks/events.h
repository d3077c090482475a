#pragma once

#include <c10/core/Stream.h>

/// Events of the device: places in a stream of simulated time. An event is an opaque pointer that
/// LibTorch keeps; every function here throws when the pointer is no live event. On the
/// host every event has happened: kernels finish before they return.
namespace trellis::device::events {

/// Creates the event at its first use (*event null), and marks the place that the stream has
/// reached.
void record(void** event, const c10::Stream& stream);
void destroy(void* event) noexcept;
/// Work that is issued to `stream` from now on starts, in simulated time, after the event. Both
/// must be of one device.
void block(void* event, const c10::Stream& stream);
/// The host waits until the event has happened.
void synchronize(void* event);
void check(void* event);
/// Simulated milliseconds from `start` to `end`. Reads the device's clock, so the first question
/// about new work compiles it.
[[nodiscard]] double elapsed_ms(void* start, void* end);

}  // namespace trellis::device::events
