// When a run ends and validates: Lightning's rules as tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/loop/step_calendar.h"

namespace trellis::trainer {
namespace {

TrainerSection section(std::int64_t max_steps) {
  TrainerSection trainer;
  trainer.max_steps = max_steps;
  return trainer;
}

std::vector<std::int64_t> validations(const StepCalendar& calendar) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= calendar.last_step(); ++step) {
    if (calendar.validates_after(step)) steps.push_back(step);
  }
  return steps;
}

using testing::ElementsAre;
using testing::IsEmpty;

TEST(StepCalendar, WithoutAnIntervalValidationEndsEachEpoch) {
  EXPECT_THAT(validations(StepCalendar(section(25), 10)), ElementsAre(10, 20));
  EXPECT_THAT(validations(StepCalendar(section(9), 10)), IsEmpty());
  EXPECT_FALSE(StepCalendar(section(9), 10).ever_validates());
}

TEST(StepCalendar, AnIntervalCountsBatchesWithinAnEpoch) {
  TrainerSection trainer = section(25);
  trainer.val_check_interval = BatchCount{.count = 4, .fraction = {}};
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(4, 8, 14, 18, 24));
}

TEST(StepCalendar, WithoutEpochsItCountsSteps) {
  TrainerSection trainer = section(25);
  trainer.val_check_interval = BatchCount{.count = 4, .fraction = {}};
  trainer.check_val_every_n_epoch = std::nullopt;
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(4, 8, 12, 16, 20, 24));
  trainer.val_check_interval = BatchCount{.count = 12, .fraction = {}};
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(12, 24))
      << "longer than an epoch is legal here";
}

TEST(StepCalendar, AFractionIsOfAnEpoch) {
  TrainerSection trainer = section(20);
  trainer.val_check_interval = BatchCount{.count = {}, .fraction = 0.5};
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(5, 10, 15, 20));
  trainer.val_check_interval = BatchCount{.count = {}, .fraction = 0.01};
  EXPECT_EQ(validations(StepCalendar(trainer, 10)).size(), 20U) << "at least one batch";
}

TEST(StepCalendar, EveryNthEpochOnly) {
  TrainerSection trainer = section(40);
  trainer.check_val_every_n_epoch = 2;
  trainer.val_check_interval = BatchCount{.count = 5, .fraction = {}};
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(15, 20, 35, 40));
}

TEST(StepCalendar, LimitedTrainBatchesShortenTheEpoch) {
  TrainerSection trainer = section(12);
  trainer.limit_train_batches = BatchCount{.count = 4, .fraction = {}};
  EXPECT_THAT(validations(StepCalendar(trainer, 10)), ElementsAre(4, 8, 12));
  trainer.limit_train_batches = BatchCount{.count = {}, .fraction = 0.3};
  EXPECT_EQ(StepCalendar(trainer, 10).batches_per_epoch(), 3);
}

TEST(StepCalendar, EpochsEndARunBeforeMaxSteps) {
  TrainerSection trainer = section(100);
  EXPECT_EQ(StepCalendar(trainer, 10).last_step(), 100);
  trainer.max_epochs = 3;
  EXPECT_EQ(StepCalendar(trainer, 10).last_step(), 30);
  EXPECT_TRUE(StepCalendar(trainer, 10).ends_by_epochs());
  trainer.max_steps = 20;
  EXPECT_EQ(StepCalendar(trainer, 10).last_step(), 20);
  trainer.max_steps = -1;
  EXPECT_EQ(StepCalendar(trainer, 10).last_step(), 30);
}

TEST(StepCalendar, AnIntervalLongerThanAnEpochIsTheUsersMistake) {
  TrainerSection trainer = section(100);
  trainer.val_check_interval = BatchCount{.count = 11, .fraction = {}};
  try {
    const StepCalendar calendar(trainer, 10);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("expected at most 10 (batches of an epoch), got 11"));
  }
}

TEST(StepCalendar, MinusOneHasNoLastStep) {
  TrainerSection trainer = section(-1);
  trainer.val_check_interval = BatchCount{.count = 4, .fraction = {}};
  EXPECT_GT(StepCalendar(trainer, 10).last_step(), std::int64_t{1} << 60);
  EXPECT_TRUE(StepCalendar(trainer, 10).ever_validates()) << "known without counting to the end";
  trainer.max_epochs = 3;
  EXPECT_EQ(StepCalendar(trainer, 10).last_step(), 30);
  EXPECT_TRUE(StepCalendar(trainer, 10).ends_by_epochs());
}

TEST(StepCalendar, EverValidatesIsWhetherSomeStepDoes) {
  for (const std::int64_t last : {1, 3, 4, 9, 10, 19, 20, 24, 25}) {
    for (const std::int64_t interval : {1, 4, 10}) {
      for (const int epochs : {0, 1, 2}) {
        TrainerSection trainer = section(last);
        trainer.val_check_interval = BatchCount{.count = interval, .fraction = {}};
        trainer.check_val_every_n_epoch = epochs == 0 ? std::nullopt : std::optional(epochs);
        const StepCalendar calendar(trainer, 10);
        EXPECT_EQ(calendar.ever_validates(), !validations(calendar).empty())
            << last << " " << interval << " " << epochs;
      }
    }
  }
}

TEST(StepCalendar, TheMinimumIsTheLaterOfStepsAndEpochs) {
  TrainerSection trainer = section(100);
  EXPECT_EQ(StepCalendar(trainer, 10).least_step(), 0);
  trainer.min_steps = 15;
  EXPECT_EQ(StepCalendar(trainer, 10).least_step(), 15);
  trainer.min_epochs = 2;
  EXPECT_EQ(StepCalendar(trainer, 10).least_step(), 20);
}

}  // namespace
}  // namespace trellis::trainer
