#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/driver/timing/step_stream.h"
#include "device/driver/timing/timed_program.h"
#include "sim/sim.h"

namespace trellis::device {

/// The part of the schedule that a ClusterJob item represents; same shape as ClusterJob::ranks.
struct ItemOrigin {
  std::uint32_t instance = 0;  ///< index in the rank's StepStream::instances
  std::uint32_t program = 0;   ///< index in StepTiming::programs
  std::uint32_t step =
      0;  ///< index in TimedProgram::steps; kHostCopy: in TimedProgram::host_copies
};

/// One simulated step: what every rank ran and when.
struct StepTiming {
  std::vector<const TimedProgram*> programs;
  std::vector<std::shared_ptr<const TimedProgram>> owned;  ///< holders of `programs`
  sim::ClusterJob job;  ///< its programs are pieces, of one segment each
  std::vector<std::vector<ItemOrigin>> origins;
  sim::ClusterTiming timing;
  /// The rank in the world of a schedule, from its place in job.ranks.
  [[nodiscard]] int world_rank(std::size_t place) const {
    return job.fold.empty() ? static_cast<int>(place) : job.fold.representatives()[place];
  }

  std::vector<RankAxis> axes;  ///< SessionOptions::axes
  /// "5 (PP 1, DP 0, TP 1)", of a rank of the world.
  [[nodiscard]] std::string rank_text(int world_rank) const {
    return std::to_string(world_rank) +
           (axes.empty() ? "" : " (" + place_text(axes, world_rank) + ")");
  }

  sim::SlowParts slow;  ///< of the machine that it was timed on
  /// How many times as long the work of the core of a schedule takes, by its place in job.ranks.
  [[nodiscard]] double slowness(std::size_t place) const {
    return slow.core(job.cores[static_cast<std::size_t>(world_rank(place))]);
  }

  [[nodiscard]] const TimedProgram& program(const ItemOrigin& origin) const {
    return *programs[origin.program];
  }

  double multi_node_stretch = 1;  ///< sim::SoftwareConfig's, 1 on one instance
  /// The part of a program's segment that is due to the run having several instances.
  [[nodiscard]] Picoseconds multi_node_part(Picoseconds segment) const {
    const double on_one = static_cast<double>(segment.value) / multi_node_stretch;
    return segment - Picoseconds(std::llround(on_one));
  }
};

}  // namespace trellis::device
