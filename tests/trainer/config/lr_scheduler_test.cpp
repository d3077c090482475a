#include "trainer/config/lr_scheduler.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/python_oracle.h"

namespace trellis::trainer {
namespace {

OptimSection optim(double lr, const std::string& name, std::int64_t warmup, std::int64_t constant,
                   double min_lr) {
  OptimSection section;
  section.lr = lr;
  section.sched = SchedSection{
      .name = name, .warmup_steps = warmup, .constant_steps = constant, .min_lr = min_lr};
  return section;
}

/// One row of the formula table: the expectations are worked out by hand from cos 0 = 1, cos π/3 =
/// ½, cos π/2 = 0, cos π = −1.
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
      {"the first step of Llama 70B in the published logs",
       optim(1.5e-5, "CosineAnnealing", 2000, 0, 1e-6), 30000, 0, 1.5e-5 / 2001},
      {"warm-up starts above zero", cosine, 16, 0, 1.0 / 5},
      {"warm-up", cosine, 16, 3, 4.0 / 5},
      {"the peak is at W", cosine, 16, 4, 1.0},
      {"a third of the fall: half of the half wave's cosine", cosine, 16, 8, 0.1 + 0.9 * 0.75},
      {"half of the fall", cosine, 16, 10, 0.1 + 0.9 * 0.5},
      {"the end", cosine, 16, 16, 0.1},
      {"after the end", cosine, 16, 17, 0.1},
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
  EXPECT_NEAR(learning_rate(optim(1.5e-5, "CosineAnnealing", 2000, 0, 1e-6), 30000, 0), 7.5e-9,
              0.01e-9);
}

TEST(LearningRate, WithoutScheduleIsConstant) {
  OptimSection section;
  section.lr = 3e-4;
  for (const std::int64_t step : {0, 1, 1000}) EXPECT_EQ(learning_rate(section, 10, step), 3e-4);
}

/// The same cases as lr_oracle.py's, by its names.
std::map<std::string, SchedSection> oracle_cases() {
  const auto sched = [](std::int64_t warmup, std::int64_t hold, std::int64_t constant,
                        double min_lr, std::map<std::string, double> arguments = {}) {
    return SchedSection{.warmup_steps = warmup,
                        .constant_steps = constant,
                        .hold_steps = hold,
                        .min_lr = min_lr,
                        .arguments = std::move(arguments)};
  };
  const auto cyclic = [&](std::map<std::string, double> more) {
    more.insert({{"base_lr", 0.1}, {"max_lr", 0.5}, {"cycle_momentum", 0}});
    return sched(0, 0, 0, 0, std::move(more));
  };
  return {
      {"LinearAnnealingWithWarmUp", sched(5, 0, 0, 0)},
      {"WarmupPolicy", sched(5, 0, 0, 0)},
      {"WarmupPolicy/floor", sched(5, 0, 0, 0.01)},
      {"WarmupHoldPolicy", sched(5, 10, 0, 0.01)},
      {"CosineAnnealing", sched(5, 0, 0, 0.02)},
      {"CosineAnnealing/tail", sched(5, 0, 8, 0.02)},
      {"SquareAnnealing", sched(5, 0, 0, 0.01)},
      {"SquareRootAnnealing", sched(5, 0, 0, 0.01)},
      {"NoamAnnealing", sched(5, 0, 0, 0.015, {{"d_model", 64}})},
      {"NoamAnnealing/no_warmup", sched(0, 0, 0, 0, {{"d_model", 64}})},
      {"NoamHoldAnnealing", sched(5, 10, 0, 0.1, {{"decay_rate", 0.6}})},
      {"WarmupAnnealing", sched(5, 0, 0, 0.02)},
      {"InverseSquareRootAnnealing", sched(5, 0, 0, 0)},
      {"T5InverseSquareRootAnnealing", sched(0, 0, 9, 0.02)},
      {"PolynomialDecayAnnealing", sched(5, 0, 0, 0.02, {{"power", 2}})},
      {"PolynomialDecayAnnealing/cycle", sched(0, 0, 0, 0.02, {{"cycle", 1}})},
      {"PolynomialHoldDecayAnnealing", sched(5, 10, 0, 0.02, {{"power", 1.5}})},
      {"WarmupHoldAnnealLinear", sched(5, 10, 0, 0.02)},
      {"WarmupHoldAnnealOneMinusSquareRoot", sched(5, 10, 0, 0.02)},
      {"StepLR", sched(0, 0, 0, 0, {{"step_size", 7}, {"gamma", 0.6}})},
      {"ExponentialLR", sched(0, 0, 0, 0, {{"gamma", 0.9}})},
      {"CyclicLR", cyclic({{"step_size_up", 6}, {"step_size_down", 4}})},
      {"CyclicLR/triangular2", cyclic({{"step_size_up", 5}, {"mode", 1}})},
      {"CyclicLR/exp_range",
       cyclic({{"step_size_up", 5}, {"mode", 2}, {"gamma", 0.97}, {"scale_mode", 0}})},
      {"ReduceLROnPlateau", sched(0, 0, 0, 0, {{"factor", 0.5}, {"patience", 1}})},
      {"ReduceLROnPlateau/cooldown",
       sched(0, 0, 0, 0.2,
             {{"factor", 0.5}, {"patience", 0}, {"cooldown", 2}, {"threshold", 0.3}})},
      {"ReduceLROnPlateau/max", sched(0, 0, 0, 0,
                                      {{"mode", 1},
                                       {"factor", 0.7},
                                       {"patience", 2},
                                       {"threshold_mode", 1},
                                       {"threshold", 0.01}})},
      {"ReduceLROnPlateau/eps",
       sched(0, 0, 0, 0, {{"factor", 0.5}, {"patience", 0}, {"eps", 0.1}})},
  };
}

OptimSection section_of(const std::string& name, SchedSection sched) {
  OptimSection section;
  section.lr = 0.5;
  sched.name = name.substr(0, name.find('/'));
  section.sched = std::move(sched);
  return section;
}

TEST(LearningRate, AScheduleWithALengthDoesNotFollowTheRun) {
  for (const auto& [name, sched] : oracle_cases()) {
    const OptimSection of_run = section_of(name, sched);
    OptimSection own = of_run;
    own.sched->max_steps = 40;
    for (std::int64_t step = 0; step < 46; ++step)
      EXPECT_EQ(learning_rate(own, 7, step), learning_rate(of_run, 40, step)) << name << step;
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const std::vector<double> kMetrics = {3.0, 2.0,  2.5, 1.99999, 2.5, 2.5, 2.5, 1.5, 1.6, 1.6, 1.6,
                                      1.6, kNan, 1.6, 1.0,     1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1};

TEST(LrScheduler, EveryScheduleEqualsItsOracleAtEveryStep) {
  const auto oracle = testing_support::read_oracle("trainer/config/lr_oracle.py");
  const auto cases = oracle_cases();
  ASSERT_EQ(oracle.size(), cases.size());
  for (const auto& [name, sched] : cases) {
    const OptimSection optim = section_of(name, sched);
    for (const SectionProblem& problem : check_schedule(optim, 40))
      ADD_FAILURE() << name << " " << problem.key << ": " << problem.text;
    LrScheduler scheduler(optim, 40);
    const std::vector<double>& expected = oracle.at(name);
    ASSERT_EQ(expected.size(), optim.sched->name == "ReduceLROnPlateau" ? kMetrics.size() : 46u);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(scheduler.lr(static_cast<std::int64_t>(step)), expected[step], 1e-13)
          << name << " step " << step;
      if (moves_per_epoch(optim.sched->name))
        scheduler.end_epoch(step < kMetrics.size() ? kMetrics[step] : 0);
    }
  }
  for (const std::string& name : schedule_names()) EXPECT_TRUE(cases.contains(name)) << name;
}

TEST(LrScheduler, HasEveryNameOfTheDocumentation) {
  EXPECT_EQ(schedule_names().size(), 19u) << "every name in the rows of the documentation's table";
  EXPECT_EQ(default_min_lr("SquareAnnealing"), 1e-5);
  EXPECT_EQ(default_min_lr("CosineAnnealing"), 0);
}

TEST(LrScheduler, ContinuesFromItsState) {
  const OptimSection optim =
      section_of("ReduceLROnPlateau", oracle_cases().at("ReduceLROnPlateau/cooldown"));
  LrScheduler whole(optim, 40), first(optim, 40), second(optim, 40);
  for (std::size_t i = 0; i < kMetrics.size(); ++i) {
    whole.end_epoch(kMetrics[i]);
    (i < 10 ? first : second).end_epoch(kMetrics[i]);
    if (i == 9) second.restore(first.state());
  }
  EXPECT_EQ(second.state(), whole.state());
}

struct BrokenSchedule {
  const char* name;
  SchedSection sched;
  const char* key;
  const char* message;
};

TEST(CheckSchedule, NamesEveryBrokenRule) {
  const std::vector<BrokenSchedule> all = {
      {"CosineAnnealing",
       {.constant_steps = 80000},
       "constant_steps",
       "trainer.max_steps is 40; make constant_steps at most 40"},
      {"CosineAnnealing",
       {.warmup_steps = 30, .constant_steps = 20},
       "constant_steps",
       "make constant_steps at most 10"},
      {"CosineAnnealing", {.min_lr = 1}, "min_lr", "must not exceed model.optim.lr: 1 > 0.5"},
      {"CosineAnnealing", {.min_lr = -1}, "min_lr", "must not be negative"},
      {"CosineAnnealing", {.hold_steps = 3}, "hold_steps", "CosineAnnealing has no such phase"},
      {"CosineAnnealing",
       {.arguments = {{"power", 2}}},
       "power",
       "CosineAnnealing has no such argument"},
      {"WarmupPolicy", {.constant_steps = 3}, "constant_steps", "WarmupPolicy has no such phase"},
      {"LinearAnnealingWithWarmUp", {.min_lr = 0.1}, "min_lr", "falls to 0"},
      {"NoamAnnealing", {}, "d_model", "NoamAnnealing needs it"},
      {"NoamHoldAnnealing", {}, "warmup_steps", "cannot be used without warm-up"},
      {"StepLR", {}, "step_size", "StepLR needs it"},
      {"StepLR",
       {.warmup_steps = 5, .arguments = {{"step_size", 3}}},
       "warmup_steps",
       "StepLR has no such phase"},
      {"ExponentialLR", {}, "gamma", "ExponentialLR needs it"},
      {"ReduceLROnPlateau", {.arguments = {{"factor", 1}}}, "factor", "must be below 1"},
      {"ReduceLROnPlateau",
       {.arguments = {{"mode", 2}}},
       "mode",
       "outside of what ReduceLROnPlateau accepts"},
      {"CyclicLR", {}, "cycle_momentum", "write cycle_momentum: False"},
      {"Cosine",
       {},
       "name",
       "unknown schedule `Cosine`; expected one of: LinearAnnealingWithWarmUp, "},
  };
  for (const BrokenSchedule& broken : all) {
    const std::vector<SectionProblem> problems =
        check_schedule(section_of(broken.name, broken.sched), 40);
    ASSERT_EQ(problems.size(), 1u) << broken.message;
    EXPECT_EQ(problems[0].key, broken.key);
    EXPECT_THAT(problems[0].text, testing::HasSubstr(broken.message));
  }
}

TEST(CheckSchedule, SilentWithoutASchedule) { EXPECT_TRUE(check_schedule({}, 40).empty()); }

TEST(LearningRate, IsFiniteAndBoundedForEverySmallSchedule) {
  for (const auto& [name, sched] : oracle_cases()) {
    for (std::int64_t max = 1; max < 6; ++max) {
      for (std::int64_t warmup = 0; warmup < 8; ++warmup) {
        for (std::int64_t phase = 0; phase < 8; ++phase) {
          OptimSection changed = section_of(name, sched);
          changed.lr = 1;
          changed.sched->warmup_steps = warmup;
          changed.sched->hold_steps = changed.sched->constant_steps = phase;
          for (std::int64_t step = 0; step <= max + 2; ++step) {
            const double lr = learning_rate(changed, max, step, step);
            EXPECT_TRUE(std::isfinite(lr) && lr >= 0 && lr <= 1)
                << name << " M " << max << " W " << warmup << " C, H " << phase << " t " << step;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trellis::trainer
