#include <algorithm>

#include <nlohmann/json.hpp>

#include "device/driver/step_timing.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;

bool is_optimizer(const Graph& graph) { return graph.name == "optimizer"; }

void charge_segment(Breakdown& b, const sim::SegmentTiming& segment, Picoseconds duration, bool optimizer) {
  if (optimizer) {
    b.optimizer += duration;
    return;
  }
  // Beside a communication a segment takes longer than alone: it waits for the memory and the DMA engines that they share.
  const Picoseconds shared = duration - segment.duration;
  b.matmul += segment.tensor_active;
  b.other_compute += segment.compute_only + segment.dma_only + shared;
  b.memory_bound += segment.dma_only + shared;
  b.other += segment.duration - segment.tensor_active - segment.compute_only - segment.dma_only;
}

/// A wait splits at the moment when every participant was there: before it, a pipeline stage idles (bubble) or a collective waits for
/// its slowest member; after it, bytes move.
void charge_wait(Breakdown& b, const std::string& axis, const sim::ItemTiming& item, const sim::CommTiming& comm) {
  const Picoseconds duration = item.end - item.start;
  if (axis == "tp") {
    b.exposed_tp += duration;
  } else if (axis == "pp") {
    const Picoseconds idle = std::clamp(comm.ready - item.start, Picoseconds(0), duration);
    b.bubble += idle;
    b.exposed_pp += duration - idle;
  } else {
    b.exposed_dp += duration;
  }
}

Breakdown break_down_rank(const StepTiming& step, std::size_t rank, const StepStream& stream, const std::vector<Graph>& graphs) {
  Breakdown b;
  Picoseconds cursor(0);
  const auto& items = step.job.ranks[rank];
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ScheduleItem& item = items[i];
    const sim::ItemTiming& time = step.timing.ranks[rank][i];
    b.other += time.start - cursor;
    cursor = time.end;
    const Picoseconds duration = time.end - time.start;
    switch (item.kind) {
      case ScheduleItem::Kind::kSegment:
        charge_segment(b, step.job.programs[item.program]->segments[item.segment], duration,
                       is_optimizer(graphs[stream.instances[step.origins[rank][i].instance].graph]));
        break;
      case ScheduleItem::Kind::kCommWait: {
        const sim::ClusterComm& comm = step.job.comms[item.comm];
        charge_wait(b, step.job.groups[comm.group].axis, time, step.timing.comms[item.comm]);
        break;
      }
      case ScheduleItem::Kind::kCommStart:
      case ScheduleItem::Kind::kHostCopy:
      case ScheduleItem::Kind::kLaunch:
        b.other += duration;
        break;
    }
  }
  b.bubble += step.timing.makespan - cursor;
  return b;
}

nlohmann::json to_json(const Breakdown& b) {
  return {{"matmul_ps", b.matmul.value},         {"other_compute_ps", b.other_compute.value}, {"exposed_tp_ps", b.exposed_tp.value},
          {"exposed_pp_ps", b.exposed_pp.value}, {"exposed_dp_ps", b.exposed_dp.value},       {"bubble_ps", b.bubble.value},
          {"optimizer_ps", b.optimizer.value},   {"other_ps", b.other.value},                 {"total_ps", b.total().value},
          {"memory_bound_ps", b.memory_bound.value}};
}

nlohmann::json programs_json(const StepTiming& step) {
  std::vector<std::int64_t> launches(step.programs.size(), 0);
  for (const auto& items : step.job.ranks) {
    for (const ScheduleItem& item : items) {
      if (item.kind == ScheduleItem::Kind::kLaunch) ++launches[item.program];
    }
  }
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < step.programs.size(); ++i) {
    Picoseconds busy(0);
    for (const sim::SegmentTiming& segment : step.job.programs[i]->segments) busy += segment.duration;
    const CompiledGraph& compiled = step.programs[i]->compiled;
    list.push_back({{"name", compiled.program.name},
                    {"hash", compiled.program.hash().to_string()},
                    {"launches", launches[i]},
                    {"device_time_us", to_microseconds(busy)},
                    {"kernels", compiled.program.kernels.size()},
                    {"instructions", compiled.program.instruction_count()},
                    {"flops", compiled.coverage.lowered_flops + compiled.coverage.estimated_flops}});
  }
  return list;
}

nlohmann::json coverage_json(const StepTiming& step) {
  Coverage sum;
  std::vector<std::string> estimated;
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < step.job.ranks[rank].size(); ++i) {
      if (step.job.ranks[rank][i].kind != ScheduleItem::Kind::kLaunch) continue;
      sum += step.programs[step.job.ranks[rank][i].program]->compiled.coverage;
    }
  }
  for (const TimedProgram* program : step.programs) {
    estimated.insert(estimated.end(), program->compiled.estimated.begin(), program->compiled.estimated.end());
  }
  std::sort(estimated.begin(), estimated.end());
  estimated.erase(std::unique(estimated.begin(), estimated.end()), estimated.end());
  const auto share = [](std::int64_t lowered, std::int64_t rest) {
    return lowered + rest == 0 ? 1.0 : static_cast<double>(lowered) / static_cast<double>(lowered + rest);
  };
  return {{"lowered_ops", sum.lowered_ops},
          {"estimated_ops", sum.estimated_ops},
          {"lowered_ops_share", share(sum.lowered_ops, sum.estimated_ops)},
          {"lowered_flops", sum.lowered_flops},
          {"estimated_flops", sum.estimated_flops},
          {"lowered_flops_share", share(sum.lowered_flops, sum.estimated_flops)},
          {"estimated", estimated}};
}

}  // namespace

std::vector<Breakdown> break_down(const StepTiming& step, const std::vector<const StepStream*>& streams,
                                  const std::vector<const std::vector<Graph>*>& graphs) {
  std::vector<Breakdown> all;
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank) {
    all.push_back(break_down_rank(step, rank, *streams[rank], *graphs[rank]));
  }
  return all;
}

nlohmann::json step_report(std::int64_t step_number, const StepTiming& step, const std::vector<Breakdown>& ranks,
                           const sim::SystemConfig& system) {
  nlohmann::json breakdown = nlohmann::json::array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    nlohmann::json row = to_json(ranks[rank]);
    row["rank"] = step.job.fold.empty() ? static_cast<int>(rank) : step.job.fold.representatives()[rank];
    row["represents"] = step.job.fold.stands_for(row["rank"].get<int>());
    breakdown.push_back(std::move(row));
  }
  nlohmann::json links = nlohmann::json::array();
  for (const sim::LinkUsage& link : step.timing.links) {
    links.push_back({{"name", link.name}, {"busy_us", to_microseconds(link.busy)}, {"size_bytes", link.bytes.value}});
  }
  return {{"schema", "trellis.step_report/1"},
          {"step", step_number},
          {"instance", system.instance.name},
          {"step_time_ps", step.timing.makespan.value},
          {"step_time_ms", to_milliseconds(step.timing.makespan)},
          {"peak_flops_per_core", system.peak_per_logical_core().value},
          {"evidence", std::string(name(system.worst_evidence()))},
          {"breakdown", std::move(breakdown)},
          {"coverage", coverage_json(step)},
          {"programs", programs_json(step)},
          {"links", std::move(links)}};
}

}  // namespace trellis::device
