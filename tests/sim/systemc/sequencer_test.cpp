#include "sim/systemc/sequencer.h"

#include <gtest/gtest.h>

#include "sim/systemc/time.h"
#include "tests/sim/core_fixture.h"

namespace trellis::sim {
namespace {

/// Another process of the kernel: posts a semaphore at a given time, as a DMA queue does.
class Poster : public sc_core::sc_module {
 public:
  Poster(const sc_core::sc_module_name& name, Semaphore& semaphore)
      : sc_module(name), semaphore_(semaphore) {
    SC_HAS_PROCESS(Poster);
    SC_METHOD(post);
    sensitive << due;
    dont_initialize();
  }
  sc_core::sc_event due;

 private:
  void post() { semaphore_.post(now_ps() + 5, 1); }
  Semaphore& semaphore_;
};

class SequencerTest : public SystemCTest {
 protected:
  SequencerTest() : semaphores_(4) {
    shared_.semaphores = &semaphores_;
    shared_.meter = &meter_;
    shared_.turn = &sequencer_;
    shared_.semaphore_latency = 28;
    meter_.reset(0, 1);
  }
  static ResolvedQueue queue(std::initializer_list<std::int64_t> occupancies, bool wait_first) {
    ResolvedQueue q;
    for (const std::int64_t occupancy : occupancies) {
      ResolvedOp op;
      op.kind = ResolvedOp::Kind::kCompute;
      op.occupancy = occupancy;
      op.ports = kSbufVectorGpSimd;
      op.num_waits = wait_first && q.ops.empty() ? 1 : 0;
      q.ops.push_back(op);
    }
    q.waits = {{0, 1}};
    return q;
  }

  std::vector<Semaphore> semaphores_;
  BusyMeter meter_;
  Sequencer sequencer_{"sequencer"};
  EngineShared shared_;
  Engine vector_{isa::Engine::kVector, 1, shared_};
  Engine gpsimd_{isa::Engine::kGpSimd, 3, shared_};
  Poster poster_{"poster", semaphores_[0]};
};

TEST_F(SequencerTest, LetsEnginesActInTheOrderOfTheirTimes) {
  elaborate_once();
  const ResolvedQueue a = queue({10, 10, 10}, false);
  const ResolvedQueue b = queue({4, 4, 4}, false);
  vector_.start(a, nullptr, now_ps());
  gpsimd_.start(b, nullptr, now_ps());
  sequencer_.start({&vector_, &gpsimd_});
  run_until_idle();
  // One port for all: 10 (v) 4 (g) 10 (v) 4 (g) 10 (v) 4 (g).
  EXPECT_EQ(vector_.end(), 38);
  EXPECT_EQ(gpsimd_.end(), 42);
}

/// While another process may still act, no engine goes past it: the port at time 25 belongs to the
/// engine that the post wakes.
TEST_F(SequencerTest, GivesWayToOtherProcesses) {
  elaborate_once();
  const ResolvedQueue a = queue({7, 7, 7, 7, 7}, false);
  const ResolvedQueue b = queue({100}, true);
  vector_.start(a, nullptr, now_ps());
  gpsimd_.start(b, nullptr, now_ps());
  sequencer_.start({&vector_, &gpsimd_});
  poster_.due.notify(duration_ps(20));
  run_until_idle();
  // The post counts at 25; the port is held until 28, when vector asks again: gpsimd came first.
  EXPECT_EQ(gpsimd_.end(), 128);
  EXPECT_EQ(vector_.end(), 135);
}

TEST_F(SequencerTest, SleepsUntilAPost) {
  elaborate_once();
  const ResolvedQueue b = queue({100}, true);
  gpsimd_.start(b, nullptr, now_ps());
  sequencer_.start({&gpsimd_});
  run_until_idle();
  EXPECT_FALSE(gpsimd_.finished());
  poster_.due.notify(duration_ps(1000));
  run_until_idle();
  EXPECT_TRUE(gpsimd_.finished());
  EXPECT_EQ(gpsimd_.end(), 1000 + 5 + 100);
}

}  // namespace
}  // namespace trellis::sim
