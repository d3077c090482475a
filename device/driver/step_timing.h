#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/driver/rank_stream.h"
#include "device/driver/timed_program.h"
#include "sim/sim.h"

namespace trellis::device {

/// Which part of the schedule a ClusterJob item represents; same shape as ClusterJob::ranks.
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
  /// Of a schedule: its place in job.ranks → its rank in the world.
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
  /// Of the time of a program's segment: what it takes longer because the run has several
  /// instances.
  [[nodiscard]] Picoseconds multi_node_part(Picoseconds segment) const {
    const double on_one = static_cast<double>(segment.value) / multi_node_stretch;
    return segment - Picoseconds(std::llround(on_one));
  }
};

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

/// Schema trellis.step_report/1.
[[nodiscard]] nlohmann::json step_report(std::int64_t step_number, const StepTiming& step,
                                         const std::vector<const StepStream*>& streams,
                                         const std::vector<const std::vector<Graph>*>& graphs,
                                         const sim::SystemConfig& system);

/// Communications of the rank that ends last, by axis, of which a rank waits for a part only:
/// `transfer_ps` from all participants being there to the end, `exposed_ps` the share of it in
/// which the rank waited; and `overlap`: for how long any communication moves bytes (`moving_ps`),
/// and for how much of it the core computes (`computing_ps`). The step report's `communication`.
[[nodiscard]] nlohmann::json communication(const StepTiming& step);

/// One step as a timeline: a process per rank with a track per engine, DMA queue group and
/// communication axis and one of the host (launches, copies of data); HBM counters; flow arrows
/// between the participants of a communication; a process of the links with the rate of each of the
/// busiest. format: "perfetto" or "text"; "kineto" and "chakra" are
/// folders (trace_folders.h).
void write_step_trace(const std::filesystem::path& path, const std::string& format,
                      const StepTiming& step, const std::vector<const StepStream*>& streams,
                      const std::vector<const std::vector<Graph>*>& graphs);

}  // namespace trellis::device
