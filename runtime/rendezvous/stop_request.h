#pragma once

namespace trellis::runtime {

/// Asks every rank of every running world to stop at its next step border (async-signal-safe: only
/// sets a flag).
void request_stop();
/// Forgets a request, for a program that goes on to run another world.
void clear_stop_request();
[[nodiscard]] bool stop_requested();

}  // namespace trellis::runtime
