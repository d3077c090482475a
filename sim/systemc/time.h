#pragma once

#include <cstdint>
#include <systemc>

namespace trellis::sim {

// The kernel's resolution is its default, one picosecond, so that its integers are ours.

inline std::int64_t now_ps() { return static_cast<std::int64_t>(sc_core::sc_time_stamp().value()); }

/// REQUIRES: ps ≥ 0.
inline sc_core::sc_time duration_ps(std::int64_t ps) {
  return sc_core::sc_time::from_value(static_cast<sc_dt::uint64>(ps));
}

/// Lets every process reach its first wait. Events that are notified before that are lost on it.
void elaborate_once();

/// Runs the kernel until nothing is left to do. Never stops it: more work may follow.
void run_until_idle();

}  // namespace trellis::sim
