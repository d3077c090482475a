#include "trainer/config/schedule/replay_plan.h"

#include <gtest/gtest.h>

#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer {
namespace {

Task moved(Task task, int microbatches) {
  if (task.kind != TaskKind::kReduceGrads) task.microbatch += microbatches;
  return task;
}

/// The executed tasks with the last period repeated where the plan says so, and what follows
/// renumbered.
std::vector<Task> played_back(const std::vector<Task>& executed, const ReplayPlan& plan) {
  const auto ends = period_ends(executed, plan);
  const auto at = [&](std::size_t place) {
    return executed.begin() + static_cast<std::ptrdiff_t>(place);
  };
  std::vector<Task> all(executed.begin(), at(ends[2]));
  for (int time = 1; time <= plan.times; ++time) {
    for (std::size_t i = ends[1]; i < ends[2]; ++i)
      all.push_back(moved(executed[i], time * plan.period));
  }
  for (std::size_t i = ends[2]; i < executed.size(); ++i)
    all.push_back(moved(executed[i], plan.skipped()));
  return all;
}

TEST(ReplayPlanTest, TheExecutedScheduleWithItsRepetitionsIsTheWholeSchedule) {
  int played = 0;
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (int chunks : {1, 2, 3, 4}) {
      for (int microbatches = chunks > 1 ? ranks : 1; microbatches <= 64;
           microbatches += chunks > 1 ? ranks : 1) {
        const PipelineShape shape{microbatches, ranks, chunks};
        const auto plan = plan_replay(shape);
        if (!plan) continue;
        ++played;
        ASSERT_EQ(plan->executed.num_microbatches + plan->skipped(), microbatches);
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<Task> executed = training_tasks(plan->executed, rank);
          ASSERT_EQ(played_back(executed, *plan), training_tasks(shape, rank))
              << ranks << " ranks, " << chunks << " chunks, M = " << microbatches << ", rank "
              << rank;
        }
      }
    }
  }
  EXPECT_GT(played, 300);
}

TEST(ReplayPlanTest, ThePeriodThatIsRepeatedDidWhatTheOneBeforeDid) {
  for (const PipelineShape shape : {PipelineShape{64, 1, 1}, PipelineShape{64, 4, 1},
                                    PipelineShape{64, 4, 2}, PipelineShape{60, 3, 4}}) {
    const auto plan = plan_replay(shape);
    ASSERT_TRUE(plan);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      const std::vector<Task> tasks = training_tasks(plan->executed, rank);
      const auto ends = period_ends(tasks, *plan);
      ASSERT_EQ(ends[2] - ends[1], ends[1] - ends[0]);
      for (std::size_t i = ends[1]; i < ends[2]; ++i)
        EXPECT_EQ(tasks[i], moved(tasks[i - (ends[1] - ends[0])], plan->period));
      EXPECT_GT(tasks.size(), ends[2]) << "the end of the schedule is executed";
    }
  }
}

TEST(ReplayPlanTest, ShortSchedulesAreExecuted) {
  EXPECT_FALSE(plan_replay({1, 1, 1}));
  EXPECT_FALSE(plan_replay({4, 1, 1}));
  EXPECT_TRUE(plan_replay({5, 1, 1}));
  EXPECT_FALSE(plan_replay({11, 8, 1}));
  EXPECT_TRUE(plan_replay({12, 8, 1}));
  EXPECT_FALSE(plan_replay({8, 8, 2})) << "all forwards come first: nothing is steady";
}

TEST(ReplayPlanTest, WhatIsExecutedDoesNotGrowWithTheMicrobatches) {
  for (const auto& [ranks, chunks] : {std::pair{1, 1}, std::pair{8, 1}, std::pair{4, 2}}) {
    EXPECT_EQ(plan_replay({128, ranks, chunks})->executed,
              plan_replay({4096, ranks, chunks})->executed);
  }
}

}  // namespace
}  // namespace trellis::trainer
