#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace trellis::sim {

/// No training software: a step is the device's work alone.
inline constexpr const char* kNoSoftware = "none";
/// Numbers of the training software, on which no program's time on a core depends, have keys that
/// begin so.
inline constexpr const char* kSoftwarePrefix = "software.";

/// Costs on the host in a training step with one release of a training software
/// (sim/configs/software).
struct SoftwareConfig {
  std::string stack = kNoSoftware, release;
  Picoseconds trace_time;  ///< the host records one operation; it does so while the device executes
                           ///< the programs before
  Picoseconds launch_time;  ///< an operation's part of what the host does to launch its program,
                            ///< once that may be in flight
  int executions_in_flight = 1;   ///< programs that are launched and have not ended
  int reads_per_micro_batch = 0;  ///< 1: the host reads a value between forward and backward
  int reads_per_step = 0;         ///< 1: it reads one at a step's end, before it records the next
  Picoseconds step_overhead;      ///< a step costs so much in addition
  double execution_stretch = 1;   ///< programs of micro-batches take so many times longer

  [[nodiscard]] Picoseconds recording(std::int64_t operations) const {
    return trace_time * operations;
  }
  [[nodiscard]] Picoseconds launching(std::int64_t operations) const {
    return launch_time * operations;
  }
};

/// One change that a release made according to its documentation.
struct SoftwareChange {
  std::string what, source;
  std::string effect;  ///< on the numbers here
};

struct SoftwareRelease {
  std::string name;
  std::vector<SoftwareChange> changed;
};

/// A training software as other parts of the program need to know it.
struct SoftwareStack {
  std::string name = kNoSoftware, what;
  /// PyTorch/XLA compiles its graphs, with or without functionalisation; published figures say what
  /// memory such a graph takes (of Hugging Face's modules on NxD).
  bool is_xla = false;
  std::string default_release;
  std::vector<SoftwareRelease> releases;  ///< oldest first
};

/// STACK of STACK@RELEASE.
[[nodiscard]] inline std::string stack_name(const std::string& software) {
  return software.substr(0, software.find('@'));
}

}  // namespace trellis::sim
