#include "device/driver/reports/breakdown.h"

#include <algorithm>

namespace trellis::device {
namespace {

using sim::ScheduleItem;

void charge_segment(Breakdown& b, const StepTiming& step, const sim::SegmentTiming& segment,
                    Picoseconds duration, double slowness, bool optimizer) {
  if (optimizer) {
    b.optimizer += duration;
    return;
  }
  // During a communication a segment takes longer than alone: it waits for the memory and the DMA
  // engines that they share.
  const Picoseconds alone = sim::slowed(segment.duration, slowness), shared = duration - alone;
  const Picoseconds matmul = sim::slowed(segment.tensor_active, slowness),
                    compute = sim::slowed(segment.compute_only, slowness);
  const Picoseconds dma = sim::slowed(segment.dma_only, slowness);
  b.matmul += matmul;
  b.other_compute += compute + dma + shared;
  b.memory_bound += dma + shared;
  const Picoseconds rest = alone - matmul - compute - dma;
  const Picoseconds multi_node = std::min(step.multi_node_part(alone), rest);
  b.multi_node += multi_node;
  b.other += rest - multi_node;
}

/// A wait splits at the moment when every participant was there: before it, a pipeline stage idles
/// (bubble) or a collective waits for its slowest member; after it, bytes move.
void charge_wait(Breakdown& b, const std::string& axis, const sim::ItemTiming& item,
                 const sim::CommTiming& comm) {
  const Picoseconds duration = item.end - item.start;
  if (axis == "tp") {
    b.exposed_tp += duration;
  } else if (axis == "pp") {
    const Picoseconds idle = bubble_of_wait(item, comm);
    b.bubble += idle;
    b.exposed_pp += duration - idle;
  } else if (axis == "cp") {
    b.exposed_cp += duration;
  } else if (axis == "ep" || axis == "shuffle") {
    b.exposed_ep += duration;
  } else {
    b.exposed_dp += duration;
  }
}

Breakdown break_down_rank(const StepTiming& step, std::size_t rank) {
  Breakdown b;
  Picoseconds cursor(0);
  const auto& items = step.job.ranks[rank];
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ScheduleItem& item = items[i];
    const sim::ItemTiming& time = step.timing.ranks[rank][i];
    (item.kind == ScheduleItem::Kind::kLaunch ? b.host : b.other) += time.start - cursor;
    cursor = time.end;
    const Picoseconds duration = time.end - time.start;
    switch (item.kind) {
      case ScheduleItem::Kind::kSegment:
        charge_segment(b, step, step.job.programs[item.program]->segments[item.segment], duration,
                       step.slowness(rank),
                       step.program(step.origins[rank][i]).phase() == TrainingPhase::kOptimizer);
        break;
      case ScheduleItem::Kind::kCommWait: {
        const sim::ClusterComm& comm = step.job.comms[item.comm];
        charge_wait(b, step.job.groups[comm.group].axis, time, step.timing.comms[item.comm]);
        break;
      }
      case ScheduleItem::Kind::kLaunch: b.launch += duration; break;
      case ScheduleItem::Kind::kHostCopy: {
        const ItemOrigin& origin = step.origins[rank][i];
        (step.program(origin).host_copies[origin.step].to_device ? b.data : b.other) += duration;
        break;
      }
      case ScheduleItem::Kind::kCommStart: b.other += duration; break;
    }
  }
  b.bubble += step.timing.makespan - cursor;
  return b;
}

}  // namespace

std::size_t last_to_end(const sim::ClusterTiming& timing) {
  std::size_t last = 0;
  const auto end = [&](std::size_t rank) {
    return timing.ranks[rank].empty() ? Picoseconds() : timing.ranks[rank].back().end;
  };
  for (std::size_t rank = 1; rank < timing.ranks.size(); ++rank) {
    if (end(rank) > end(last)) last = rank;
  }
  return last;
}

Picoseconds bubble_of_wait(const sim::ItemTiming& item, const sim::CommTiming& comm) {
  return std::clamp(comm.ready - item.start, Picoseconds(0), item.end - item.start);
}

std::vector<Breakdown> break_down(const StepTiming& step) {
  std::vector<Breakdown> all;
  for (std::size_t rank = 0; rank < step.job.ranks.size(); ++rank)
    all.push_back(break_down_rank(step, rank));
  return all;
}

}  // namespace trellis::device
