#include "trainer/config/schedule/replay_plan.h"

#include <stdexcept>

#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer {

namespace {

constexpr int kExecutedPeriods =
    3;  ///< the first one makes what is made once; the other two are compared

/// Backward steps of a period.
int steps(const PipelineShape& shape) { return shape.num_chunks > 1 ? shape.num_stages() : 1; }

/// Warm-up steps of the first rank, which has the most.
int warmup_steps(const PipelineShape& shape) {
  if (shape.num_chunks == 1) return shape.num_ranks - 1;
  return 2 * (shape.num_ranks - 1) + (shape.num_chunks - 1) * shape.num_ranks;
}

}  // namespace

/// One steady step more than the periods: the last one lets nothing arrive for a forward that
/// follows.
std::optional<ReplayPlan> plan_replay(const PipelineShape& shape) {
  ReplayPlan plan{shape, shape.num_chunks > 1 ? shape.num_ranks : 1, 0};
  const int needed = warmup_steps(shape) + kExecutedPeriods * steps(shape) + 1;
  plan.executed.num_microbatches = (needed + steps(shape) - 1) / steps(shape) * plan.period;
  plan.times = (shape.num_microbatches - plan.executed.num_microbatches) / plan.period;
  if (plan.times < 1) return std::nullopt;
  return plan;
}

std::array<std::size_t, 3> period_ends(const std::vector<Task>& tasks, const ReplayPlan& plan) {
  std::array<std::size_t, 3> ends{};
  int backwards = 0;
  for (std::size_t i = 0; i + 1 < tasks.size(); ++i) {
    if (tasks[i].is_forward() || same_pass(tasks[i], tasks[i + 1])) continue;
    ++backwards;
    if (backwards % steps(plan.executed) != 0) continue;
    const auto period = static_cast<std::size_t>(backwards / steps(plan.executed));
    ends[period - 1] = i + 1;
    if (period == ends.size()) return ends;
  }
  throw std::logic_error("a schedule of fewer periods than its plan counts on");
}

}  // namespace trellis::trainer
