#include "trainer/app/report/throughput.h"

#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

TEST(Throughput, IsTheMeanOfAMovingWindowAndKeepsItsPeak) {
  Throughput throughput(3);
  EXPECT_EQ(throughput.sequences_per_s(), 0);
  throughput.add(8, 4);
  EXPECT_DOUBLE_EQ(throughput.sequences_per_s(), 2) << "n sequences over the time so far";
  throughput.add(8, 1);
  throughput.add(8, 1);
  EXPECT_DOUBLE_EQ(throughput.sequences_per_s(), 24.0 / 6);
  throughput.add(8, 2);
  EXPECT_DOUBLE_EQ(throughput.sequences_per_s(), 24.0 / 4) << "the first step has left the window";
  EXPECT_DOUBLE_EQ(throughput.seconds_per_step(), 4.0 / 3);
  throughput.add(8, 100);
  EXPECT_LT(throughput.sequences_per_s(), 1);
  EXPECT_DOUBLE_EQ(throughput.peak(), 6);
}

}  // namespace
}  // namespace trellis::trainer
