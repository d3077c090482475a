// The schedule is data: its formulas, its order and its freedom from deadlock are checked without a
// model.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/config/schedule/messages.h"
#include "trainer/config/schedule/partition.h"
#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer {
namespace {

using enum TaskKind;

struct StageSteps {
  int microbatches, stage;
  const char* steps;
};
class FourStages : public testing::TestWithParam<StageSteps> {};
TEST_P(FourStages, HaveExactlyTheseSteps) {
  EXPECT_EQ(steps_text(Train1F1BSchedule(GetParam().microbatches, 4, GetParam().stage).tasks()),
            GetParam().steps);
}
INSTANTIATE_TEST_SUITE_P(
    TwoSixAndEightMicroBatches, FourStages,
    testing::Values(StageSteps{2, 0, "F0 F1 B0 B1"}, StageSteps{2, 1, "F0 F1 B0 B1"},
                    StageSteps{2, 2, "F0 F1 B0 B1"}, StageSteps{2, 3, "F0 B0 F1 B1"},
                    StageSteps{6, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"},
                    StageSteps{6, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"},
                    StageSteps{6, 2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"},
                    StageSteps{6, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"},
                    StageSteps{8, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"},
                    StageSteps{8, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"},
                    StageSteps{8, 2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"},
                    StageSteps{8, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"}));

TEST(Train1F1BSchedule, OneStageHasNoNeighbours) {
  const std::vector<Task> expected{{kForwardStep, 0},
                                   {kBackwardStep, 0},
                                   {kForwardStep, 1},
                                   {kBackwardStep, 1},
                                   {kReduceGrads, -1}};
  EXPECT_EQ(Train1F1BSchedule(2, 1, 0).tasks(), expected);
}

TEST(Train1F1BSchedule, AMiddleStageReceivesComputesSends) {
  const std::vector<Task> expected{{kForwardPreprocess, 0},  {kForwardStep, 0},
                                   {kForwardPostprocess, 0}, {kBackwardPreprocess, 0},
                                   {kBackwardStep, 0},       {kBackwardPostprocess, 0},
                                   {kReduceGrads, -1}};
  EXPECT_EQ(Train1F1BSchedule(1, 3, 1).tasks(), expected);
}

class Schedules : public testing::TestWithParam<PipelineShape> {
 protected:
  const PipelineShape shape = GetParam();
  const int m = shape.num_microbatches, pp = shape.num_ranks, vpp = shape.num_chunks;
  [[nodiscard]] std::vector<std::vector<Task>> all() const {
    std::vector<std::vector<Task>> lists;
    for (int rank = 0; rank < pp; ++rank) lists.push_back(training_tasks(shape, rank));
    return lists;
  }
};

TEST_P(Schedules, WarmUpAndInFlightFollowTheFormulas) {
  for (int rank = 0; rank < pp; ++rank) {
    const std::vector<Task> tasks = training_tasks(shape, rank);
    int in_flight = 0, most = 0, before_first_backward = 0, steps = 0;
    for (const Task& task : tasks) {
      if (task.kind == kForwardStep)
        ++in_flight, ++steps, before_first_backward += steps == in_flight ? 1 : 0;
      if (task.kind == kBackwardStep) --in_flight, ++steps;
      most = std::max(most, in_flight);
    }
    const int all_forwards = m * vpp;
    const int warmup =
        vpp == 1 ? std::min(pp - rank - 1, m)
                 : (m == pp ? all_forwards
                            : std::min(2 * (pp - rank - 1) + (vpp - 1) * pp, all_forwards));
    EXPECT_EQ(vpp == 1 ? Train1F1BSchedule(m, pp, rank).num_warmup_microbatches()
                       : TrainInterleavedSchedule(shape, rank).num_warmup_steps(),
              warmup);
    EXPECT_EQ(vpp == 1 ? Train1F1BSchedule(m, pp, rank).max_in_flight()
                       : TrainInterleavedSchedule(shape, rank).max_in_flight(),
              most);
    EXPECT_EQ(most, std::min(warmup + 1, all_forwards));
    EXPECT_EQ(before_first_backward, std::min(warmup + 1, all_forwards))
        << "warm-up and the first steady forward";
    EXPECT_EQ(in_flight, 0);
    EXPECT_EQ(steps, 2 * all_forwards);
    EXPECT_EQ(tasks.back(), (Task{kReduceGrads, -1}));
  }
}

TEST_P(Schedules, EachStepRunsOnceAndAForwardBeforeItsBackward) {
  for (const std::vector<Task>& tasks : all()) {
    std::map<std::pair<int, int>, int>
        seen;  // (micro-batch, chunk) → 1 after the forward, 2 after the backward
    for (const Task& task : tasks) {
      if (task.kind != kForwardStep && task.kind != kBackwardStep) continue;
      EXPECT_EQ(seen[std::make_pair(task.microbatch, task.chunk)]++, task.is_forward() ? 0 : 1)
          << to_string(task);
    }
    EXPECT_EQ(static_cast<int>(seen.size()), m * vpp);
  }
}

/// Plays all ranks as the engine does: receives are posted in the sender's order, one pass ahead; a
/// send is under way until its receive is posted, and at most one may be under way per channel.
class Play {
 public:
  Play(const std::vector<std::vector<Task>>& lists, const PipelineShape& shape)
      : lists_(lists), shape_(shape), next_(lists.size(), 0) {
    for (int from = 0; from < shape.num_ranks; ++from) {
      for (int to = 0; to < shape.num_ranks; ++to) {
        channels_[{from, to}].order =
            messages_between(lists[static_cast<std::size_t>(from)], shape, from, to);
      }
    }
  }
  [[nodiscard]] bool runs_to_the_end() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        while (has_next(rank) && try_one(rank))
          ++next_[static_cast<std::size_t>(rank)], progress = true;
      }
    }
    for (const auto& [ends, channel] : channels_) {
      if (channel.posted != channel.order.size()) return false;  // a send without a receive
    }
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      if (has_next(rank)) return false;
    }
    return true;
  }

 private:
  struct Channel {
    std::vector<Message> order;
    std::size_t posted = 0, sent = 0;
  };
  [[nodiscard]] const std::vector<Task>& list(int rank) const {
    return lists_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool has_next(int rank) const {
    return next_[static_cast<std::size_t>(rank)] < list(rank).size();
  }
  /// The place of a message in its channel; none when no one sends it.
  std::optional<std::size_t> place(const Channel& channel, const Message& message) const {
    const auto found = std::find(channel.order.begin(), channel.order.end(), message);
    return found == channel.order.end() ? std::nullopt
                                        : std::optional<std::size_t>(found - channel.order.begin());
  }
  void post_receives(int rank) {
    const std::size_t at = next_[static_cast<std::size_t>(rank)];
    if (at > 0 && same_pass(list(rank)[at - 1], list(rank)[at])) return;
    for (const Message& message : receives_to_post(list(rank), at, shape_, rank)) {
      Channel& channel = channels_[{sender(message, shape_), rank}];
      if (const auto posted = place(channel, message))
        channel.posted = std::max(channel.posted, *posted + 1);
    }
  }
  bool try_one(int rank) {
    post_receives(rank);
    const Task& task = list(rank)[next_[static_cast<std::size_t>(rank)]];
    if (const auto message = received_by(task, shape_, rank)) {
      const Channel& channel = channels_[{sender(*message, shape_), rank}];
      const auto at = place(channel, *message);
      return at && channel.sent > *at;
    }
    if (const auto message = sent_by(task, shape_, rank)) {
      Channel& channel = channels_[{rank, shape_.rank_of(message->stage)}];
      if (channel.sent > channel.posted) return false;
      EXPECT_EQ(channel.order[channel.sent++], *message);
    }
    return true;
  }

  const std::vector<std::vector<Task>>& lists_;
  PipelineShape shape_;
  std::vector<std::size_t> next_;
  std::map<std::pair<int, int>, Channel> channels_;
};

TEST_P(Schedules, OneSendUnderWayPerChannelIsEnough) {
  EXPECT_TRUE(Play(all(), shape).runs_to_the_end());
}

TEST_P(Schedules, ALostSendIsNoticed) {
  if (shape.num_stages() == 1) return;  // no messages that could be lost
  auto lists = all();
  auto& last = lists.back();
  last.erase(std::find(last.begin(), last.end(), Task{kBackwardPostprocess, m - 1}));
  EXPECT_FALSE(Play(lists, shape).runs_to_the_end());
}

/// When every chunk's forward takes `forward` and its backward `backward`, and messages take no
/// time.
int makespan(const std::vector<std::vector<Task>>& lists, const PipelineShape& shape, int forward,
             int backward) {
  std::map<std::tuple<bool, int, int>, int> done;  // (forward, micro-batch, stage) → when
  std::vector<int> clock(lists.size(), 0);
  std::vector<std::size_t> next(lists.size(), 0);
  const auto ready = [&](bool is_forward, int microbatch, int stage) -> std::optional<int> {
    const int needs = is_forward ? stage - 1 : stage + 1;
    if (needs < 0 || needs == shape.num_stages()) return 0;
    const auto found = done.find({is_forward, microbatch, needs});
    return found == done.end() ? std::nullopt : std::optional<int>(found->second);
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (; next[rank] < lists[rank].size(); ++next[rank], progress = true) {
        const Task& task = lists[rank][next[rank]];
        if (task.kind != kForwardStep && task.kind != kBackwardStep) continue;
        const int stage = shape.stage(static_cast<int>(rank), task.chunk);
        const auto start = ready(task.is_forward(), task.microbatch, stage);
        if (!start) break;
        clock[rank] = std::max(clock[rank], *start) + (task.is_forward() ? forward : backward);
        done[{task.is_forward(), task.microbatch, stage}] = clock[rank];
      }
    }
  }
  return *std::max_element(clock.begin(), clock.end());
}

TEST_P(Schedules, TheBubbleIsThePublishedFraction) {
  const int chunk_time = 1 + 2, busy = m * vpp * chunk_time;
  const double bubble = static_cast<double>(makespan(all(), shape, 1, 2) - busy) / busy;
  EXPECT_DOUBLE_EQ(bubble, (pp - 1.0) / (vpp * m));
}

TEST_P(Schedules, InferenceIsEveryForwardInOrder) {
  if (vpp > 1) return;
  std::vector<std::vector<Task>> lists;
  for (int rank = 0; rank < pp; ++rank) {
    std::vector<Task> expected;
    for (int i = 0; i < m; ++i) {
      if (rank > 0) expected.push_back({kForwardPreprocess, i});
      expected.push_back({kForwardStep, i});
      if (rank < pp - 1) expected.push_back({kForwardPostprocess, i});
    }
    lists.push_back(InferenceSchedule(m, pp, rank).tasks());
    EXPECT_EQ(lists.back(), expected);
  }
  EXPECT_TRUE(Play(lists, shape).runs_to_the_end());
}

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (int pp : {1, 2, 3, 4, 8}) {
    for (int m : {1, 2, 3, 4, 6, 8, 9, 16}) {
      all.push_back({m, pp, 1});
      for (int vpp : {2, 3, 4}) {
        if (pp > 1 && m % pp == 0) all.push_back({m, pp, vpp});
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Sizes, Schedules, testing::ValuesIn(shapes()), [](const auto& test) {
  const PipelineShape& shape = test.param;
  return "M" + std::to_string(shape.num_microbatches) + "PP" + std::to_string(shape.num_ranks) +
         "VPP" + std::to_string(shape.num_chunks);
});

TEST(TrainInterleavedSchedule, OrderOfTwoRanksTwoChunksFourMicroBatches) {
  EXPECT_EQ(steps_text(training_tasks({4, 2, 2}, 0), true),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(steps_text(training_tasks({4, 2, 2}, 1), true),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(TrainInterleavedSchedule, AsManyMicroBatchesAsRanksRunAllForwardsFirst) {
  for (int rank : {0, 1})
    EXPECT_EQ(steps_text(training_tasks({2, 2, 2}, rank), true),
              "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
}

TEST(TrainInterleavedSchedule, TheFirstAndTheLastStageHaveOneNeighbour) {
  const std::vector<Task> expected{
      {kForwardStep, 0, 0},        {kForwardPostprocess, 0, 0}, {kForwardPreprocess, 0, 1},
      {kForwardStep, 0, 1},        {kBackwardStep, 0, 1},       {kBackwardPostprocess, 0, 1},
      {kBackwardPreprocess, 0, 0}, {kBackwardStep, 0, 0},       {kReduceGrads, -1}};
  EXPECT_EQ(training_tasks({1, 1, 2}, 0), expected);
}

TEST(TrainInterleavedSchedule, MicroBatchesThatTheRanksDoNotDivideAreTheUsersMistake) {
  try {
    (void)training_tasks({6, 4, 2}, 0);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("virtual_pipeline_model_parallel_size"));
    EXPECT_THAT(
        error.what(),
        testing::HasSubstr("expected a number of micro-batches that is a multiple of 4, got 6"));
  }
}

TEST(Messages, WithTwoRanksActivationsAndGradientsShareAChannel) {
  const PipelineShape shape{2, 2, 2};
  const std::vector<Message> expected{{1, 0, false}, {1, 1, false}, {3, 0, false},
                                      {3, 1, false}, {1, 0, true},  {1, 1, true}};
  EXPECT_EQ(messages_between(training_tasks(shape, 0), shape, 0, 1), expected);
}

TEST(Partition, TheRemainderGoesToTheLastStages) {
  EXPECT_EQ(partition_layers(7, 3), (std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 7}}));
  EXPECT_EQ(partition_layers(8, 3), (std::vector<LayerRange>{{0, 2}, {2, 5}, {5, 8}}));
  EXPECT_EQ(partition_layers(4, 4), (std::vector<LayerRange>{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
}

TEST(Partition, AStageWithoutLayersIsTheUsersMistake) {
  EXPECT_THROW(partition_layers(3, 4), ConfigError);
}

TEST(Partition, EveryNumberOfStagesUpToTheLayersIsServedEvenly) {
  for (int layers = 1; layers <= 24; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const auto ranges = partition_layers(layers, stages);
      int next = 0, previous = 1;
      for (const LayerRange& range : ranges) {
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.end - range.first, previous) << "the remainder is last";
        EXPECT_LE(range.end - range.first, (layers + stages - 1) / stages);
        previous = range.end - range.first;
        next = range.end;
      }
      EXPECT_EQ(next, layers);
    }
  }
}

std::vector<std::string> names(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back("model.layers." + std::to_string(i));
  return result;
}

TEST(PipelineCuts, NameTheLastLayerOfEachStageButTheFinalOne) {
  EXPECT_EQ(partition_layers(names(6), {"model.layers.0", "model.layers.3"}, 3),
            (std::vector<LayerRange>{{0, 1}, {1, 4}, {4, 6}}));
  EXPECT_EQ(partition_layers(names(6), {}, 1), (std::vector<LayerRange>{{0, 6}}));
}

std::string message_of(const std::vector<std::string>& cuts, int stages) {
  try {
    partition_layers(names(6), cuts, stages);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PipelineCuts, MistakesAreNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(message_of({"model.layers.1"}, 3), HasSubstr("expected 2 names"));
  EXPECT_THAT(
      message_of({"model.layer.1", "model.layers.3"}, 3),
      HasSubstr("\"model.layer.1\" is no layer of the model: expected one of model.layers.0, "
                "model.layers.1, model.layers.2, model.layers.3, model.layers.4"));
  EXPECT_THAT(message_of({"model.layers.3", "model.layers.1"}, 3),
              HasSubstr("expected the cuts in the order of the layers"));
  EXPECT_THAT(message_of({"model.layers.3", "model.layers.3"}, 3), HasSubstr("occurs twice"));
  EXPECT_THAT(message_of({"model.layers.3", "model.layers.5"}, 3),
              HasSubstr("the final stage would get none"));
}

TEST(PipelineCuts, AllMistakesAreReportedTogether) {
  const std::string message = message_of({"x", "model.layers.5"}, 4);
  EXPECT_THAT(message,
              testing::AllOf(testing::HasSubstr("expected 3 names"), testing::HasSubstr("\"x\""),
                             testing::HasSubstr("model.layers.5")));
}

}  // namespace
}  // namespace trellis::trainer
