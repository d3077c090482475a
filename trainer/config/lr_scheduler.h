#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/optimizer_table.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The names that `model.optim.sched.name` may have: NeMo's, NxDT's LinearAnnealingWithWarmUp, and
/// four of PyTorch's.
[[nodiscard]] const std::vector<std::string>& schedule_names();
/// NeMo's min_lr when the file has none: 1e-5 for SquareAnnealing, else 0.
[[nodiscard]] double default_min_lr(const std::string& schedule);
/// ExponentialLR and ReduceLROnPlateau move once per epoch, all others once per optimizer step.
[[nodiscard]] bool moves_per_epoch(const std::string& schedule);
/// The arguments of one schedule, in addition to steps and min_lr, with their defaults. Words are
/// numbered: CyclicLR's mode is 0 triangular, 1 triangular2, 2 exp_range, its scale_mode 0 cycle, 1
/// iterations; ReduceLROnPlateau's mode is 0 min, 1 max, its threshold_mode 0 rel, 1 abs.
[[nodiscard]] std::vector<OptimizerArgument> schedule_arguments(const std::string& schedule);

/// Every rule that `optim.sched` breaks, keys below `model.optim.sched`; empty: legal.
[[nodiscard]] std::vector<SectionProblem> check_schedule(const OptimSection& optim,
                                                         std::int64_t max_steps);

/// Steps that the schedule lasts: its own max_steps, which NeMo takes first, or those of the run.
[[nodiscard]] std::int64_t schedule_steps(const OptimSection& optim, std::int64_t max_steps);

/// Learning rate of optimizer step `step` (from 0) of a run of `max_steps`, by NeMo's formulas.
/// With b = lr, W = warmup_steps, M = schedule_steps(), C = constant_steps, H = hold_steps + W, t =
/// step, p = min_lr:
///
///   no sched                    b
///   LinearAnnealingWithWarmUp   t < W: b·t/max(1, W);  else b·max(0, (M−t)/max(1, M−W))
///   CosineAnnealing, C > 0   D = M − C − W;  t ≤ W: b·t/W;  t > W + D: p;
///     else p + (b−p)·½·(1 + cos π(t−W)/D)
///   NoamAnnealing               b·d_model^−½·min(t^−½, t·W^−1.5), t ≥ 1; not below p after W
///   T5InverseSquareRoot…        t ≤ C: 1/√C;  t > M: p;  else 1/√t   (b does not appear)
///   StepLR, CyclicLR   as torch, in steps;  ExponentialLR: b·gamma^epoch;
///     ReduceLROnPlateau: see LrScheduler
///
/// All others share: t ≤ W, W > 0: b·(t+1)/(W+1);  t > M: p;  hold policies, t < H: b;  and
/// otherwise
///
///   WarmupPolicy, WarmupHoldPolicy        b
///   CosineAnnealing, C = 0                p + (b−p)·½·(1 + cos π(t−W)/(M−W))
///   SquareAnnealing                       max(p, b·((M−t)/(M−W))²)
///   SquareRootAnnealing                   max(p, b·√((M−t)/M))
///   WarmupAnnealing                       p + (b−p)·(1 − (t−W)/(M−W))
///   InverseSquareRootAnnealing            b / √((t+1)/(W+1))
///   NoamHoldAnnealing                     max(p, b·max(1, W^r)/max(1, (t−hold)^r)), r = decay_rate
///   PolynomialDecayAnnealing   p + (b−p)·(1 − (t−W)/(M−W))^power;
///     cycle: the period is lengthened instead of ending
///   PolynomialHoldDecayAnnealing          the same with H in the place of W
///   WarmupHoldAnnealLinear                p + (b−p)·(1 − (t−H)/(M−H))
///   WarmupHoldAnnealOneMinusSquareRoot    p + (b−p)·(1 − √((t−H)/(M−H)))
///
/// Always finite: a phase of no length ends at once.
[[nodiscard]] double learning_rate(const OptimSection& optim, std::int64_t max_steps,
                                   std::int64_t step, std::int64_t epoch = 0);

/// The schedule with the one part that depends on more than the step: ReduceLROnPlateau remembers
/// metrics.
class LrScheduler {
 public:
  /// The part of the schedule that a checkpoint keeps.
  struct State {
    double best = 0;
    std::int64_t epochs = 0, bad_epochs = 0, cooldown = 0;
    double lr = 0;  ///< ReduceLROnPlateau's present rate
    bool operator==(const State&) const = default;
  };

  LrScheduler(const OptimSection& optim, std::int64_t max_steps);
  [[nodiscard]] double lr(std::int64_t step) const;
  /// Called at the end of an epoch, with its monitored value.
  void end_epoch(double metric);
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  OptimSection optim_;
  std::int64_t max_steps_;
  State state_;
};

}  // namespace trellis::trainer
