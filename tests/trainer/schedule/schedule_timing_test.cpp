// The trainer's task lists in virtual time: against the closed form, against the schedulers' own
// counts, and against the picture in scheduler.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/config/schedule/schedule_timing.h"
#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer {
namespace {

std::vector<PassCost> equal(const PipelineShape& shape, std::int64_t forward,
                            std::int64_t backward) {
  return std::vector<PassCost>(static_cast<std::size_t>(shape.num_stages()),
                               PassCost{forward, backward});
}

class Shapes : public testing::TestWithParam<PipelineShape> {};

TEST_P(Shapes, BubbleIsTheClosedFormForEqualStages) {
  for (const auto& [forward, backward] : {std::pair{1, 1}, std::pair{1, 2}, std::pair{2, 3}}) {
    const ScheduleTiming timing =
        time_schedule(GetParam(), equal(GetParam(), forward * 1000, backward * 1000));
    EXPECT_NEAR(timing.bubble(), uniform_bubble(GetParam()), 1e-9) << forward << ":" << backward;
  }
}

TEST_P(Shapes, PassesOfARankDoNotOverlapAndFollowTheirInputs) {
  const PipelineShape shape = GetParam();
  const ScheduleTiming timing = time_schedule(shape, equal(shape, 3, 5), 2);
  std::vector<std::vector<std::int64_t>> forward(
      static_cast<std::size_t>(shape.num_stages()),
      std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_microbatches)));
  auto backward = forward;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::int64_t free_at = 0;
    for (const PassSlot& slot : timing.ranks[static_cast<std::size_t>(rank)]) {
      EXPECT_GE(slot.start, free_at);
      free_at = slot.end;
      (slot.task.is_forward() ? forward : backward)[static_cast<std::size_t>(shape.stage(
          rank, slot.task.chunk))][static_cast<std::size_t>(slot.task.microbatch)] = slot.end;
    }
  }
  const int transfer = shape.num_ranks > 1 ? 2 : 0;
  for (int m = 0; m < shape.num_microbatches; ++m) {
    const auto mb = static_cast<std::size_t>(m);
    for (std::size_t stage = 1; stage < forward.size(); ++stage) {
      EXPECT_GE(forward[stage][mb] - 3, forward[stage - 1][mb] + transfer);
      EXPECT_GE(backward[stage - 1][mb] - 5, backward[stage][mb] + transfer);
    }
    EXPECT_GE(backward.back()[mb] - 5, forward.back()[mb]);
  }
}

TEST_P(Shapes, InFlightIsWhatTheSchedulersSay) {
  const PipelineShape shape = GetParam();
  const ScheduleTiming timing = time_schedule(shape, equal(shape, 1, 2));
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    if (shape.num_chunks > 1) {
      EXPECT_EQ(timing.peak_in_flight(rank), TrainInterleavedSchedule(shape, rank).max_in_flight());
    } else {
      EXPECT_EQ(timing.peak_in_flight(rank),
                Train1F1BSchedule(shape.num_microbatches, shape.num_ranks, rank).max_in_flight());
      EXPECT_LE(timing.peak_in_flight(rank), shape.num_ranks);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shapes,
                         testing::Values(PipelineShape{1, 1, 1}, PipelineShape{6, 1, 1},
                                         PipelineShape{2, 4, 1}, PipelineShape{6, 4, 1},
                                         PipelineShape{8, 4, 1}, PipelineShape{16, 8, 1},
                                         PipelineShape{4, 2, 2}, PipelineShape{4, 4, 2},
                                         PipelineShape{8, 4, 2}, PipelineShape{12, 4, 3},
                                         PipelineShape{64, 8, 4}, PipelineShape{256, 8, 1}));

TEST(ScheduleTiming, IsThePictureOfTheScheduler) {
  const ScheduleTiming timing = time_schedule({6, 4, 1}, equal({6, 4, 1}, 1, 1));
  const auto starts = [&](std::size_t rank) {
    std::vector<std::int64_t> list;
    for (const PassSlot& slot : timing.ranks[rank]) list.push_back(slot.start);
    return list;
  };
  EXPECT_THAT(starts(0), testing::ElementsAre(0, 1, 2, 3, 7, 8, 9, 10, 11, 13, 15, 17));
  EXPECT_THAT(starts(3), testing::ElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
  EXPECT_EQ(timing.end, 18);
}

TEST(ScheduleTiming, TheSlowestStageSetsThePace) {
  std::vector<PassCost> costs = equal({32, 4, 1}, 10, 20);
  costs[2] = {20, 40};
  const ScheduleTiming timing = time_schedule({32, 4, 1}, costs);
  EXPECT_EQ(timing.busy(2), 32 * 60);
  EXPECT_LT(timing.end - timing.busy(2), 3 * 60)
      << "it idles only while the pipeline fills and drains";
}

TEST(ScheduleTiming, CostsMustBeOnePerVirtualStage) {
  EXPECT_THROW(static_cast<void>(time_schedule({4, 2, 2}, {PassCost{}})), std::logic_error);
}

}  // namespace
}  // namespace trellis::trainer
