#include "sim/neuron_core/semaphore.h"

#include <gtest/gtest.h>

#include "sim/kernel/time.h"
#include "tests/sim/core_fixture.h"

namespace trellis::sim {
namespace {

class SemaphoreTest : public SystemCTest {
 protected:
  Semaphore semaphore_;
};

TEST_F(SemaphoreTest, IsReadyWhenEnoughIncrementsAreVisible) {
  semaphore_.post(300, 1);
  semaphore_.post(100, 2);  // posted later, visible earlier
  EXPECT_EQ(semaphore_.ready_time(1), 100);
  EXPECT_EQ(semaphore_.ready_time(2), 100);
  EXPECT_EQ(semaphore_.ready_time(3), 300);
  EXPECT_EQ(semaphore_.ready_time(4), kNever);
}

TEST_F(SemaphoreTest, TakingUsesTheEarliestIncrements) {
  semaphore_.post(100, 2);
  semaphore_.post(300, 2);
  semaphore_.take(1);
  EXPECT_EQ(semaphore_.known_value(), 3);
  EXPECT_EQ(semaphore_.ready_time(1), 100);
  semaphore_.take(2);
  EXPECT_EQ(semaphore_.ready_time(1), 300);
}

/// A waiter is woken when the increment counts, not when it is posted.
class Waiter : public sc_core::sc_module {
 public:
  Waiter(const sc_core::sc_module_name& name, Semaphore& s) : sc_module(name), semaphore(s) {
    SC_HAS_PROCESS(Waiter);
    SC_THREAD(run);
  }
  void run() {
    semaphore.waiting = true;
    wait(semaphore.posted);
    woken = now_ps();
  }
  Semaphore& semaphore;
  std::int64_t woken = -1;
};

TEST_F(SemaphoreTest, WakesItsWaiterAtTheTimeOfThePost) {
  Waiter waiter("waiter", semaphore_);
  elaborate_once();
  semaphore_.post(700, 1);
  semaphore_.post(500, 1);
  run_until_idle();
  EXPECT_EQ(waiter.woken, 500);
}

}  // namespace
}  // namespace trellis::sim
