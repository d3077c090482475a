#pragma once

#include <cstddef>
#include <vector>

#include "device/driver/timing/step_timing.h"

namespace trellis::device {

/// Where one rank's simulated step went. The parts add up to the step exactly (integer
/// picoseconds).
struct Breakdown {
  Picoseconds matmul, other_compute, exposed_tp, exposed_pp, exposed_dp, bubble, optimizer;
  Picoseconds exposed_cp;  ///< keys and values on their way around the ring, and their gradients
  Picoseconds exposed_ep;  ///< exchanges of tokens between experts, with the wait for the rank that
                           ///< has most of them
  Picoseconds data;    ///< waits for inputs that are copied from the host's memory to the device's;
                       ///< what reading them costs the host is not in it
  Picoseconds launch;  ///< of programs: their start, what software does between steps
  Picoseconds host;    ///< waits for the host, which records and launches programs
  Picoseconds multi_node;  ///< what forward and backward take longer on several instances:
                           ///< measured, less the collectives
  Picoseconds other;
  Picoseconds memory_bound;  ///< the share of other_compute in which only DMA was busy
  [[nodiscard]] Picoseconds total() const {
    return matmul + other_compute + exposed_tp + exposed_pp + exposed_dp + exposed_cp + exposed_ep +
           bubble + optimizer + data + launch + host + multi_node + other;
  }
  bool operator==(const Breakdown&) const = default;
};

/// Place of the rank whose last item ends last, the lowest of equals: whose step reports explain.
[[nodiscard]] std::size_t last_to_end(const sim::ClusterTiming& timing);

[[nodiscard]] std::vector<Breakdown> break_down(const StepTiming& step);
/// The part of a wait for a pipeline transfer that passed before every participant was there.
[[nodiscard]] Picoseconds bubble_of_wait(const sim::ItemTiming& item, const sim::CommTiming& comm);

}  // namespace trellis::device
