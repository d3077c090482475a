#pragma once

#include <functional>
#include <vector>

#include "device/driver/timing/step_timing.h"

namespace trellis::device {

/// The ranks of a world, and which of them have streams.
struct World {
  int size = 1;
  sim::RankFold fold;          ///< empty: all
  bool reads_forward = false;  ///< the host reads a value of each forward pass before the backward
};

/// Lays one step's streams of all ranks that run out as a ClusterJob. `program_of(graph)` gives the
/// timed program of a rank's graph; equal graphs give the same pointer. Communications of different
/// ranks become one by (kind of pairing, group, sequence).
[[nodiscard]] StepTiming lay_out_step(
    const std::vector<const StepStream*>& streams,
    const std::vector<const std::vector<Graph>*>& graphs, const World& world,
    const std::function<const TimedProgram*(const Graph&)>& program_of);

/// Equal keys: equal jobs, whatever the absolute sequence numbers.
[[nodiscard]] ContentHash job_key(const sim::ClusterJob& job);

}  // namespace trellis::device
