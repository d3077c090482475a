// The schedule is data: its formulas, its order and its freedom from deadlock are checked without a model.
#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/pipeline/partition.h"
#include "trainer/pipeline/scheduler.h"

namespace trellis::trainer {
namespace {

using enum TaskKind;

/// "F0 F1 B0 …": the steps of a stage's list.
std::string steps_of(const std::vector<Task>& tasks) {
  std::string text;
  for (const Task& task : tasks) {
    if (task.kind == kForwardStep) text += " F" + std::to_string(task.microbatch);
    if (task.kind == kBackwardStep) text += " B" + std::to_string(task.microbatch);
  }
  return text.empty() ? text : text.substr(1);
}

TEST(Train1F1BSchedule, OrderOfFourStagesAndSixMicroBatches) {
  EXPECT_EQ(steps_of(Train1F1BSchedule(6, 4, 0).tasks()), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  EXPECT_EQ(steps_of(Train1F1BSchedule(6, 4, 3).tasks()), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(Train1F1BSchedule, OneStageHasNoNeighbours) {
  const std::vector<Task> expected{{kForwardStep, 0}, {kBackwardStep, 0}, {kForwardStep, 1}, {kBackwardStep, 1}, {kReduceGrads, -1}};
  EXPECT_EQ(Train1F1BSchedule(2, 1, 0).tasks(), expected);
}

TEST(Train1F1BSchedule, AMiddleStageReceivesComputesSends) {
  const std::vector<Task> expected{{kForwardPreprocess, 0},  {kForwardStep, 0},  {kForwardPostprocess, 0},
                                   {kBackwardPreprocess, 0}, {kBackwardStep, 0}, {kBackwardPostprocess, 0}, {kReduceGrads, -1}};
  EXPECT_EQ(Train1F1BSchedule(1, 3, 1).tasks(), expected);
}

struct Size {
  int microbatches, stages;
};
class Schedules : public testing::TestWithParam<Size> {
 protected:
  const int m = GetParam().microbatches, pp = GetParam().stages;
  [[nodiscard]] std::vector<std::vector<Task>> all() const {
    std::vector<std::vector<Task>> lists;
    for (int stage = 0; stage < pp; ++stage) lists.push_back(Train1F1BSchedule(m, pp, stage).tasks());
    return lists;
  }
};

TEST_P(Schedules, WarmUpAndInFlightFollowTheFormulas) {
  for (int stage = 0; stage < pp; ++stage) {
    const Train1F1BSchedule schedule(m, pp, stage);
    const std::vector<Task> tasks = schedule.tasks();
    int in_flight = 0, most = 0, before_first_backward = 0;
    bool backward_seen = false;
    for (const Task& task : tasks) {
      if (task.kind == kForwardStep) ++in_flight, before_first_backward += backward_seen ? 0 : 1;
      if (task.kind == kBackwardStep) --in_flight, backward_seen = true;
      most = std::max(most, in_flight);
    }
    EXPECT_EQ(schedule.num_warmup_microbatches(), std::min(pp - stage - 1, m));
    EXPECT_EQ(before_first_backward, std::min(pp - stage, m)) << "warm-up and the first steady forward";
    EXPECT_EQ(schedule.max_in_flight(), std::min(m, pp - stage));
    EXPECT_EQ(most, schedule.max_in_flight());
    EXPECT_EQ(in_flight, 0);
    EXPECT_EQ(std::count_if(tasks.begin(), tasks.end(), [](const Task& t) { return t.kind == kForwardStep || t.kind == kBackwardStep; }), 2 * m);
    EXPECT_EQ(tasks.back(), (Task{kReduceGrads, -1}));
  }
}

/// Plays all stages with messages of a channel in order. `capacity`: sends under way per channel before the next one has to wait.
bool runs_to_the_end(const std::vector<std::vector<Task>>& lists, int capacity) {
  std::map<std::pair<int, int>, std::vector<int>> channels;  // (from, to) → micro-batches under way
  std::vector<std::size_t> next(lists.size(), 0);
  const auto try_one = [&](int stage) {
    const Task task = lists[static_cast<std::size_t>(stage)][next[static_cast<std::size_t>(stage)]];
    const bool receives = task.kind == kForwardPreprocess || task.kind == kBackwardPreprocess;
    const bool sends = task.kind == kForwardPostprocess || task.kind == kBackwardPostprocess;
    const int peer = task.kind == kForwardPreprocess || task.kind == kBackwardPostprocess ? stage - 1 : stage + 1;
    if (receives) {
      auto& queue = channels[{peer, stage}];
      if (queue.empty()) return false;
      EXPECT_EQ(queue.front(), task.microbatch) << "messages of a channel arrive in the order in which they are expected";
      queue.erase(queue.begin());
    }
    if (sends) {
      auto& queue = channels[{stage, peer}];
      if (static_cast<int>(queue.size()) >= capacity) return false;
      queue.push_back(task.microbatch);
    }
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t stage = 0; stage < lists.size(); ++stage) {
      while (next[stage] < lists[stage].size() && try_one(static_cast<int>(stage))) ++next[stage], progress = true;
    }
  }
  for (const auto& [channel, queue] : channels) EXPECT_TRUE(queue.empty()) << "each send has its receive";
  for (std::size_t stage = 0; stage < lists.size(); ++stage) {
    if (next[stage] != lists[stage].size()) return false;
  }
  return true;
}

TEST_P(Schedules, OneSendUnderWayPerDirectionIsEnough) { EXPECT_TRUE(runs_to_the_end(all(), 1)); }

TEST_P(Schedules, ALostSendIsNoticed) {
  if (pp == 1) return;  // no messages that could be lost
  auto lists = all();
  auto& last = lists.back();
  last.erase(std::find(last.begin(), last.end(), Task{kBackwardPostprocess, m - 1}));
  EXPECT_FALSE(runs_to_the_end(lists, 1));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Schedules,
                         testing::Values(Size{1, 1}, Size{4, 1}, Size{1, 2}, Size{2, 2}, Size{7, 2}, Size{2, 4}, Size{4, 4}, Size{6, 4},
                                         Size{16, 4}, Size{9, 8}),
                         [](const auto& test) { return "M" + std::to_string(test.param.microbatches) + "PP" + std::to_string(test.param.stages); });

TEST(Partition, TheRemainderGoesToTheLastStages) {
  EXPECT_EQ(partition_layers(7, 3), (std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 7}}));
  EXPECT_EQ(partition_layers(8, 3), (std::vector<LayerRange>{{0, 2}, {2, 5}, {5, 8}}));
  EXPECT_EQ(partition_layers(4, 4), (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
}

TEST(Partition, AStageWithoutLayersIsTheUsersMistake) { EXPECT_THROW(partition_layers(3, 4), ConfigError); }

}  // namespace
}  // namespace trellis::trainer
