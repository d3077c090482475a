#pragma once

#include <cstdint>
#include <optional>

/// How long a training run takes when nodes fail and checkpoints are written. Seconds throughout.
namespace trellis::analysis {

struct RunPlanInputs {
  double step_s = 0;
  std::int64_t steps = 0;
  int nodes = 1;
  double validation_s = 0;            ///< one pass
  std::int64_t validation_every = 0;  ///< steps; 0: never
  double checkpoint_s = 0;            ///< the run waits while one is written
  std::optional<double> interval_s;  ///< work between two checkpoints; none: the optimum when nodes
                                     ///< fail, else no checkpoints
  std::optional<double> node_mtbf_s;  ///< of one node; none: nothing fails
  double restart_s = 0;               ///< from a failure to the first step again
};

/// Where the time goes; the parts add up to the total.
struct RunTime {
  double steps_s = 0, validation_s = 0, checkpoints_s = 0, lost_work_s = 0, restarts_s = 0;
  double failures = 0, checkpoints = 0;  ///< expected
  std::optional<double> interval_s;      ///< the one used
  bool interval_is_optimum = false;
  [[nodiscard]] double total_s() const {
    return steps_s + validation_s + checkpoints_s + lost_work_s + restarts_s;
  }
};

/// The best time between two checkpoints, √(2·C·M)·(1 + ⅓·√(C/2M) + C/18M) − C, and M when C ≥ 2M:
/// J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS
/// 22 (2006), eq. 37; its first term is J. W. Young's, CACM 17 (1974). `checkpoint_s`: C > 0;
/// `mtbf_s`: M of the whole job.
[[nodiscard]] double optimum_interval(double checkpoint_s, double mtbf_s);

/// Expected time for `work_s` of work in pieces of `interval_s`, each followed by a checkpoint,
/// with exponentially distributed failures, also while restarting: M·e^(R/M)·(e^((τ+C)/M) −
/// 1)·work/τ (Daly 2006, eq. 20).
[[nodiscard]] double expected_time(double work_s, double interval_s, double checkpoint_s,
                                   double restart_s, double mtbf_s);

/// Throws ConfigError when failures make the run endless (a piece of work of many MTBFs), or when a
/// best interval is asked of free checkpoints.
[[nodiscard]] RunTime plan_time(const RunPlanInputs& inputs);

}  // namespace trellis::analysis
