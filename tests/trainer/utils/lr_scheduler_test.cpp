#include "trainer/utils/lr_scheduler.h"

#include <cmath>

#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

OptimSection optim(double lr, const std::string& name, std::int64_t warmup, std::int64_t constant, double min_lr) {
  OptimSection section;
  section.lr = lr;
  section.sched = SchedSection{name, warmup, constant, min_lr};
  return section;
}

/// One row of the formula table: the expectations are worked out by hand from cos 0 = 1, cos π/3 = ½, cos π/2 = 0, cos π = −1.
struct Row {
  const char* what;
  OptimSection optim;
  std::int64_t max_steps, step;
  double expected;
};

TEST(LearningRate, FollowsTheFormulas) {
  const OptimSection cosine = optim(1.0, "CosineAnnealing", 4, 0, 0.1);
  const OptimSection no_warmup = optim(1.0, "CosineAnnealing", 0, 0, 0.1);
  const OptimSection tail = optim(1.0, "CosineAnnealing", 4, 10, 0.1);
  const OptimSection linear = optim(1.0, "LinearAnnealingWithWarmUp", 4, 0, 0);
  const Row rows[] = {
      {"the first step of Llama 70B in the published logs", optim(1.5e-5, "CosineAnnealing", 2000, 0, 1e-6), 30000, 0, 1.5e-5 / 2001},
      {"warm-up starts above zero", cosine, 16, 0, 1.0 / 5},
      {"warm-up", cosine, 16, 3, 4.0 / 5},
      {"the peak is at W", cosine, 16, 4, 1.0},
      {"a third of the fall: half of the half wave's cosine", cosine, 16, 8, 0.1 + 0.9 * 0.75},
      {"half of the fall", cosine, 16, 10, 0.1 + 0.9 * 0.5},
      {"the end", cosine, 16, 16, 0.1},
      {"behind the end", cosine, 16, 17, 0.1},
      {"no warm-up: starts at the peak", no_warmup, 12, 0, 1.0},
      {"no warm-up: half of the fall", no_warmup, 12, 6, 0.1 + 0.9 * 0.5},
      {"with a tail, warm-up starts at zero", tail, 26, 0, 0.0},
      {"with a tail: warm-up", tail, 26, 2, 0.5},
      {"with a tail: the peak", tail, 26, 4, 1.0},
      {"with a tail: half of the fall", tail, 26, 10, 0.1 + 0.9 * 0.5},
      {"with a tail: its first step", tail, 26, 16, 0.1},
      {"in the tail", tail, 26, 25, 0.1},
      {"a tail longer than the run: still warms up", tail, 12, 2, 0.5},
      {"a tail longer than the run: then min_lr", tail, 12, 5, 0.1},
      {"linear: starts at zero", linear, 20, 0, 0.0},
      {"linear: warm-up", linear, 20, 3, 0.75},
      {"linear: the peak", linear, 20, 4, 1.0},
      {"linear: half of the fall", linear, 20, 12, 0.5},
      {"linear: the end", linear, 20, 20, 0.0},
      {"linear: never below zero", linear, 20, 25, 0.0},
      {"a run shorter than its warm-up", cosine, 2, 1, 2.0 / 5},
      {"linear: a run shorter than its warm-up", linear, 2, 1, 0.25},
  };
  for (const Row& row : rows) {
    EXPECT_NEAR(learning_rate(row.optim, row.max_steps, row.step), row.expected, 1e-15) << row.what;
  }
}

TEST(LearningRate, PublishedCheckValue) {
  EXPECT_NEAR(learning_rate(optim(1.5e-5, "CosineAnnealing", 2000, 0, 1e-6), 30000, 0), 7.5e-9, 0.01e-9);
}

TEST(LearningRate, WithoutScheduleIsConstant) {
  OptimSection section;
  section.lr = 3e-4;
  for (const std::int64_t step : {0, 1, 1000}) EXPECT_EQ(learning_rate(section, 10, step), 3e-4);
}

TEST(LearningRate, IsFiniteAndBoundedForEverySmallSchedule) {
  for (const char* name : {"CosineAnnealing", "LinearAnnealingWithWarmUp"}) {
    for (std::int64_t max = 1; max < 6; ++max) {
      for (std::int64_t warmup = 0; warmup < 8; ++warmup) {
        for (std::int64_t constant = 0; constant < 8; ++constant) {
          for (std::int64_t step = 0; step <= max + 2; ++step) {
            const double lr = learning_rate(optim(1.0, name, warmup, constant, 0.1), max, step);
            EXPECT_TRUE(std::isfinite(lr) && lr >= 0 && lr <= 1) << name << " M " << max << " W " << warmup << " C " << constant << " t " << step;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trellis::trainer
