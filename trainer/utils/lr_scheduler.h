#pragma once

#include <cstdint>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Learning rate of optimizer step `step` (from 0) of a run of `max_steps`, by NeMo's formulas. With b = lr, W = warmup_steps,
/// M = max_steps, C = constant_steps, t = step:
///
///   no sched                   b
///   CosineAnnealing, C = 0     t ≤ W, W > 0: b·(t+1)/(W+1);  t > M: min_lr;  else min_lr + (b − min_lr)·½·(1 + cos π(t−W)/(M−W))
///   CosineAnnealing, C > 0     D = M − C − W;  t ≤ W, W > 0: b·t/W;  t > W + D: min_lr;
///                              else min_lr + (b − min_lr)·½·(1 + cos π(t−W)/D)
///   LinearAnnealingWithWarmUp  t < W: b·t/max(1, W);  else b·max(0, (M−t)/max(1, M−W))
[[nodiscard]] double learning_rate(const OptimSection& optim, std::int64_t max_steps, std::int64_t step);

}  // namespace trellis::trainer
