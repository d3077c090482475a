#include "sim/dma/dma_engines.h"

#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

DmaTransfer transfer(int first_engine, int engines, std::int64_t per_engine) {
  DmaTransfer t;
  t.first_engine = first_engine;
  t.num_engines = engines;
  t.per_engine = per_engine;
  t.descriptors = per_engine * engines;
  t.descriptor_time = Picoseconds(10);
  return t;
}

class DmaEnginesTest : public ::testing::Test {
 protected:
  DmaEnginesTest() {
    engines_.configure(16);
    engines_.reset(0);
  }
  DmaEngines engines_;
};

TEST_F(DmaEnginesTest, EachServesItsOwnShareInOrder) {
  EXPECT_EQ(engines_.serve(0, transfer(0, 16, 8), 0, 8).end, 80);
  EXPECT_EQ(engines_.serve(5, transfer(0, 4, 1), 0, 1).end, 90);
  EXPECT_EQ(engines_.serve(200, transfer(0, 16, 8), 0, 4).end, 240);
  const DmaEngines::Slot rest = engines_.serve(200, transfer(0, 16, 8), 4, 4);
  EXPECT_EQ(rest.begin, 240);
  EXPECT_EQ(rest.end, 280);
}

TEST_F(DmaEnginesTest, DifferentEnginesDoNotWaitForEachOther) {
  EXPECT_EQ(engines_.serve(0, transfer(0, 8, 100), 0, 100).end, 1000);
  EXPECT_EQ(engines_.serve(0, transfer(8, 8, 3), 0, 3).end, 30);
}

TEST_F(DmaEnginesTest, TheLastEngineMayHaveLess) {
  DmaTransfer t = transfer(0, 3, 8);
  t.descriptors = 20;
  EXPECT_EQ(engines_.serve(0, t, 0, 8).end, 80);
  EXPECT_EQ(engines_.serve(0, transfer(2, 1, 1), 0, 1).end, 50);  // engine 2 had four
}

TEST_F(DmaEnginesTest, EveryEngineWritesASemaphore) {
  const DmaTransfer t = transfer(0, 1, 10);
  EXPECT_EQ(engines_.write_semaphores(0, t, DmaEngines::Part::kIdle, 7), 7);
  engines_.serve(0, t, 0, 10);
  EXPECT_EQ(engines_.write_semaphores(0, t, DmaEngines::Part::kBusy, 7), 107);
  std::vector<std::int64_t> state;
  engines_.append_state(state, 0);
  ASSERT_EQ(state.size(), 16u);
  EXPECT_EQ(state[0], 107);
  EXPECT_EQ(state[15], 7);
}

TEST_F(DmaEnginesTest, StateIsRelativeToNow) {
  engines_.serve(1000, transfer(0, 16, 2), 0, 2);
  std::vector<std::int64_t> early;
  std::vector<std::int64_t> late;
  engines_.append_state(early, 1005);
  engines_.reset(0);
  engines_.serve(7000, transfer(0, 16, 2), 0, 2);
  engines_.append_state(late, 7005);
  EXPECT_EQ(early, late);
}

}  // namespace
}  // namespace trellis::sim
