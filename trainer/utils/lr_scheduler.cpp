#include "trainer/utils/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trellis::trainer {
namespace {

/// Half a cosine wave from `high` (done = 0) to `low` (done = length).
double half_cosine(double high, double low, double done, double length) {
  return low + (high - low) * 0.5 * (1 + std::cos(std::numbers::pi * done / length));
}

double cosine_annealing(double lr, const SchedSection& sched, std::int64_t max_steps, std::int64_t step) {
  const std::int64_t warmup = sched.warmup_steps;
  const std::int64_t decay_steps = max_steps - warmup - sched.constant_steps;
  const double t = static_cast<double>(step), w = static_cast<double>(warmup);
  if (warmup > 0 && step <= warmup) {
    // Megatron's variant (with a constant tail) starts at 0, NeMo's own at b/(W+1).
    return sched.constant_steps > 0 ? lr * t / w : lr * (t + 1) / (w + 1);
  }
  if (step > warmup + decay_steps || decay_steps <= 0) return sched.min_lr;
  return half_cosine(lr, sched.min_lr, t - w, static_cast<double>(decay_steps));
}

double linear_annealing(double lr, const SchedSection& sched, std::int64_t max_steps, std::int64_t step) {
  const std::int64_t warmup = sched.warmup_steps;
  if (step < warmup) return lr * static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup));
  const auto remaining = static_cast<double>(max_steps - step);
  return lr * std::max(0.0, remaining / static_cast<double>(std::max<std::int64_t>(1, max_steps - warmup)));
}

}  // namespace

double learning_rate(const OptimSection& optim, std::int64_t max_steps, std::int64_t step) {
  if (!optim.sched) return optim.lr;
  if (optim.sched->name == "LinearAnnealingWithWarmUp") return linear_annealing(optim.lr, *optim.sched, max_steps, step);
  return cosine_annealing(optim.lr, *optim.sched, max_steps, step);
}

}  // namespace trellis::trainer
