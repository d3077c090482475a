#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/compiler/compile.h"
#include "device/driver/rank_stream.h"
#include "sim/sim.h"

namespace trellis::device {

/// A graph that was compiled and timed once, however many ranks and micro-batches run it.
struct TimedProgram {
  CompiledGraph compiled;
  std::shared_ptr<const sim::CoreTiming> timing;
};

/// Which part of the schedule a ClusterJob item stands for; same shape as ClusterJob::ranks.
struct ItemOrigin {
  std::uint32_t instance = 0;  ///< index in the rank's StepStream::instances
  std::uint32_t program = 0;   ///< index in StepTiming::programs
};

/// One simulated step: what every rank ran and when.
struct StepTiming {
  std::vector<const TimedProgram*> programs;  ///< parallel to job.programs
  sim::ClusterJob job;
  std::vector<std::vector<ItemOrigin>> origins;
  sim::ClusterTiming timing;
};

/// Where one rank's simulated step went. The parts add up to the step exactly (integer picoseconds).
struct Breakdown {
  Picoseconds matmul, other_compute, exposed_tp, exposed_pp, exposed_dp, bubble, optimizer, other;
  Picoseconds memory_bound;  ///< the share of other_compute in which only DMA was busy
  [[nodiscard]] Picoseconds total() const {
    return matmul + other_compute + exposed_tp + exposed_pp + exposed_dp + bubble + optimizer + other;
  }
};

[[nodiscard]] std::vector<Breakdown> break_down(const StepTiming& step, const std::vector<const StepStream*>& streams,
                                                const std::vector<const std::vector<Graph>*>& graphs);

/// Schema trellis.step_report/1.
[[nodiscard]] nlohmann::json step_report(std::int64_t step_number, const StepTiming& step, const std::vector<Breakdown>& ranks,
                                         const sim::SystemConfig& system);

/// Communications of the rank that ends last, by axis, of which a rank waits for a part only: `transfer_ps` from all participants being there to the end,
/// `exposed_ps` the share of it in which the rank waited. The step report's `communication`.
[[nodiscard]] nlohmann::json communication(const StepTiming& step);

/// One step as a timeline: a process per rank with a track per engine, DMA queue group and communication axis; HBM counters; flow arrows
/// between the participants of a communication. format: "perfetto" or "text".
void write_step_trace(const std::filesystem::path& path, const std::string& format, const StepTiming& step,
                      const std::vector<const StepStream*>& streams, const std::vector<const std::vector<Graph>*>& graphs);

}  // namespace trellis::device
