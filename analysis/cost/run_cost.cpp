#include "analysis/cost/run_cost.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::analysis {

double optimum_interval(double checkpoint_s, double mtbf_s) {
  if (checkpoint_s >= 2 * mtbf_s) return mtbf_s;
  const double ratio = checkpoint_s / (2 * mtbf_s);
  return std::sqrt(2 * checkpoint_s * mtbf_s) * (1 + std::sqrt(ratio) / 3 + ratio / 9) -
         checkpoint_s;
}

double expected_time(double work_s, double interval_s, double checkpoint_s, double restart_s,
                     double mtbf_s) {
  return mtbf_s * std::exp(restart_s / mtbf_s) * std::expm1((interval_s + checkpoint_s) / mtbf_s) *
         work_s / interval_s;
}

RunTime plan_time(const RunPlanInputs& in) {
  RunTime time;
  time.steps_s = static_cast<double>(in.steps) * in.step_s;
  if (in.validation_every > 0) {
    const std::int64_t validations = in.steps / in.validation_every;
    time.validation_s = static_cast<double>(validations) * in.validation_s;
  }
  const double work = time.steps_s + time.validation_s;
  time.interval_s = in.interval_s;
  if (!in.node_mtbf_s) {
    if (!in.interval_s) return time;
    time.checkpoints = std::floor(work / *in.interval_s);
    time.checkpoints_s = time.checkpoints * in.checkpoint_s;
    return time;
  }
  const double mtbf = *in.node_mtbf_s / in.nodes;
  if (!time.interval_s) {
    if (in.checkpoint_s <= 0) {
      throw ConfigError(
          "--mtbf: the best checkpoint interval needs what a checkpoint costs: give "
          "--checkpoint-time or --checkpoint-bandwidth, or your own --checkpoint-interval");
    }
    time.interval_s = optimum_interval(in.checkpoint_s, mtbf);
    time.interval_is_optimum = true;
  }
  // A run shorter than the interval writes its checkpoint at the end.
  const double interval = std::min(*time.interval_s, work);
  const double total = expected_time(work, interval, in.checkpoint_s, in.restart_s, mtbf);
  if (!std::isfinite(total) || total > 1000 * work) {
    throw ConfigError(fmt::format(
        "the run does not end: {} nodes fail every {:.0f} s together, but a piece of work with its "
        "checkpoint takes {:.0f} s and a restart {:.0f} s; "
        "use a shorter --checkpoint-interval, faster checkpoints or restarts, or fewer nodes",
        in.nodes, mtbf, interval + in.checkpoint_s, in.restart_s));
  }
  time.checkpoints = work / interval;
  time.checkpoints_s = time.checkpoints * in.checkpoint_s;
  time.failures = total / mtbf;
  // Each failure is followed by a restart, which the next failure may cut short.
  time.restarts_s = time.failures * mtbf * -std::expm1(-in.restart_s / mtbf);
  time.lost_work_s = std::max(0.0, total - work - time.checkpoints_s - time.restarts_s);
  return time;
}

}  // namespace trellis::analysis
