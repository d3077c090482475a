#include "trainer/config/schedule/schedule_timing.h"

#include <algorithm>
#include <stdexcept>

#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kNotYet = -1;

/// When the output of each pass was ready, by virtual stage and micro-batch.
class Outputs {
 public:
  explicit Outputs(const PipelineShape& shape)
      : shape_(shape),
        forward_(static_cast<std::size_t>(shape.num_stages()) *
                     static_cast<std::size_t>(shape.num_microbatches),
                 kNotYet),
        backward_(forward_) {}

  std::int64_t& of(bool forward, int stage, int microbatch) {
    auto& times = forward ? forward_ : backward_;
    return times[static_cast<std::size_t>(stage) *
                     static_cast<std::size_t>(shape_.num_microbatches) +
                 static_cast<std::size_t>(microbatch)];
  }

  /// When `rank` has what the pass needs; kNotYet: a pass before it has not run. The last stage's
  /// backward needs its own forward, the loss.
  std::int64_t input(const Task& task, int rank, std::int64_t transfer) {
    const int stage = shape_.stage(rank, task.chunk);
    const bool forward = task.is_forward();
    if (forward && stage == 0) return 0;
    const bool of_the_loss = !forward && stage == shape_.num_stages() - 1;
    const int from = forward ? stage - 1 : of_the_loss ? stage : stage + 1;
    const std::int64_t ready = of(forward || of_the_loss, from, task.microbatch);
    if (ready == kNotYet) return kNotYet;
    return ready + (shape_.rank_of(from) == rank ? 0 : transfer);
  }

 private:
  PipelineShape shape_;
  std::vector<std::int64_t> forward_, backward_;
};

std::vector<Task> passes(const PipelineShape& shape, int rank) {
  std::vector<Task> tasks = training_tasks(shape, rank);
  std::erase_if(tasks, [](const Task& task) {
    return task.kind != TaskKind::kForwardStep && task.kind != TaskKind::kBackwardStep;
  });
  return tasks;
}

}  // namespace

std::int64_t ScheduleTiming::busy(int rank) const {
  std::int64_t sum = 0;
  for (const PassSlot& slot : ranks[static_cast<std::size_t>(rank)]) sum += slot.end - slot.start;
  return sum;
}

double ScheduleTiming::bubble() const {
  std::int64_t sum = 0;
  for (int rank = 0; rank < shape.num_ranks; ++rank) sum += busy(rank);
  return end == 0 ? 0 : 1 - static_cast<double>(sum) / (static_cast<double>(end) * shape.num_ranks);
}

int ScheduleTiming::peak_in_flight(int rank) const {
  int kept = 0, peak = 0;
  for (const PassSlot& slot : ranks[static_cast<std::size_t>(rank)]) {
    kept += slot.task.is_forward() ? 1 : -1;
    peak = std::max(peak, kept);
  }
  return peak;
}

ScheduleTiming time_schedule(const PipelineShape& shape, const std::vector<PassCost>& costs,
                             std::int64_t transfer) {
  if (static_cast<int>(costs.size()) != shape.num_stages())
    throw std::logic_error("a schedule needs a cost for each virtual stage");
  ScheduleTiming timing{
      shape, std::vector<std::vector<PassSlot>>(static_cast<std::size_t>(shape.num_ranks)), 0};
  Outputs outputs(shape);
  std::vector<std::vector<Task>> tasks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) tasks.push_back(passes(shape, rank));
  std::vector<std::size_t> next(tasks.size(), 0);
  std::vector<std::int64_t> free_at(tasks.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (; next[r] < tasks[r].size(); ++next[r]) {
        const Task& task = tasks[r][next[r]];
        const std::int64_t ready = outputs.input(task, rank, transfer);
        if (ready == kNotYet) break;
        const int stage = shape.stage(rank, task.chunk);
        const PassCost& cost = costs[static_cast<std::size_t>(stage)];
        const std::int64_t start = std::max(free_at[r], ready);
        free_at[r] = start + (task.is_forward() ? cost.forward : cost.backward);
        outputs.of(task.is_forward(), stage, task.microbatch) = free_at[r];
        timing.ranks[r].push_back({task, start, free_at[r]});
        timing.end = std::max(timing.end, free_at[r]);
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < tasks.size(); ++r) {
    if (next[r] != tasks[r].size())
      throw std::logic_error("the schedule does not end: rank " + std::to_string(r) + " waits at " +
                             to_string(tasks[r][next[r]]));
  }
  return timing;
}

double uniform_bubble(const PipelineShape& shape) {
  const double rest = shape.num_ranks - 1;
  return rest / (static_cast<double>(shape.num_chunks) * shape.num_microbatches + rest);
}

}  // namespace trellis::trainer
