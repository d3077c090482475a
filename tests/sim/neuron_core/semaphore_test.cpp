#include "sim/neuron_core/semaphore.h"

#include <gtest/gtest.h>

#include <random>

namespace trellis::sim {
namespace {

TEST(Semaphore, IsReadyWhenEnoughIncrementsAreVisible) {
  Semaphore semaphore;
  semaphore.post(300, 1);
  semaphore.post(100, 2);  // posted later, visible earlier
  EXPECT_EQ(semaphore.ready_time(1), 100);
  EXPECT_EQ(semaphore.ready_time(2), 100);
  EXPECT_EQ(semaphore.ready_time(3), 300);
  EXPECT_EQ(semaphore.ready_time(4), kNever);
}

TEST(Semaphore, TakingUsesTheEarliestIncrements) {
  Semaphore semaphore;
  semaphore.post(100, 2);
  semaphore.post(300, 2);
  semaphore.take(1);
  EXPECT_EQ(semaphore.known_value(), 3);
  EXPECT_EQ(semaphore.ready_time(1), 100);
  semaphore.take(2);
  EXPECT_EQ(semaphore.ready_time(1), 300);
}

TEST(Semaphore, KeepsCountOverManyPostsAndTakes) {
  Semaphore semaphore;
  std::mt19937 rng(1);
  std::int64_t value = 0;
  for (std::int64_t t = 0; t < 10000; ++t) {
    const std::int64_t more = 1 + rng() % 3;
    semaphore.post(t, more);
    value += more;
    if (value > 8 && rng() % 2 == 0) {
      semaphore.take(7);
      value -= 7;
    }
    ASSERT_EQ(semaphore.known_value(), value);
    ASSERT_EQ(semaphore.ready_time(value + 1), kNever);
    ASSERT_EQ(semaphore.ready_time(value), t);
  }
}

class Ear final : public Semaphore::Waiter {
 public:
  void posted() override { ++heard; }
  int heard = 0;
};

TEST(Semaphore, NotifiesItsWaiterOfEveryPost) {
  Semaphore semaphore;
  Ear ear;
  semaphore.post(1, 1);
  semaphore.expect(ear, 9);
  semaphore.post(2, 1);
  semaphore.post(3, 1);
  EXPECT_EQ(ear.heard, 2);
  semaphore.reset();
  semaphore.post(4, 1);
  EXPECT_EQ(ear.heard, 2);
}

TEST(Semaphore, LevelSaysWhatIsVisibleTakenAndMissing) {
  Semaphore semaphore;
  Ear ear;
  semaphore.post(10, 5);
  semaphore.post(20, 3);
  semaphore.take(2);
  Semaphore::Level level = semaphore.level(15);
  EXPECT_EQ(level.visible, 3);
  EXPECT_EQ(level.taken, 2);
  EXPECT_EQ(level.missing, kNever);
  semaphore.expect(ear, 10);
  EXPECT_EQ(semaphore.level(15).missing, 4);  // the increment at 20 is known
  semaphore.raise(15, 3);
  EXPECT_EQ(semaphore.level(15).visible, 6);
  EXPECT_EQ(semaphore.ready_time(9), 20);
}

TEST(Semaphore, FutureForgetsThePast) {
  const auto state = [](std::initializer_list<std::int64_t> times, std::int64_t now) {
    Semaphore semaphore;
    for (const std::int64_t time : times) semaphore.post(time, 1);
    std::vector<std::int64_t> out;
    semaphore.append_future(out, now);
    return out;
  };
  EXPECT_EQ(state({10, 20, 130}, 100), state({1090, 1100, 1130}, 1100));
  EXPECT_NE(state({10, 20, 130}, 100), state({10, 20, 131}, 100));
  EXPECT_EQ(state({10, 20, 130}, 100), state({10, 130}, 100));
}

}  // namespace
}  // namespace trellis::sim
