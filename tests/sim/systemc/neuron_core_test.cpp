#include "sim/systemc/neuron_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/config/load_system.h"
#include "sim/systemc/sequencer.h"
#include "sim/systemc/time.h"
#include "tests/sim/core_fixture.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::testing::tiny_gemm;

/// One core by itself: the test is its HBM's owner and starts it.
class NeuronCoreTest : public SystemCTest {
 protected:
  NeuronCoreTest() {
    const SystemConfig system = load_system("trn1.32xlarge");
    core_.configure(system.chip.core);
    stack_.configure(BytesPerSecond(410e9));
  }
  void start(const isa::Program& program) {
    elaborate_once();
    stack_.reset(now_ps());
    queues_ = resolve_segment(program, program.segments[0], core_.config());
    core_.start(queues_, nullptr, nullptr, program.kernels.size(), now_ps());
    sequencer_.start(core_.engines());
  }

  Hbm stack_{"hbm"};
  Sequencer sequencer_{"sequencer"};
  NeuronCore core_{"core", nullptr, stack_, sequencer_};
  std::vector<ResolvedQueue> queues_;
};

TEST_F(NeuronCoreTest, RunsUntilNothingIsLeftToDo) {
  const isa::Program program = tiny_gemm(20);
  start(program);
  EXPECT_NE(core_.waiting(), "");
  run_until_idle();
  EXPECT_EQ(core_.waiting(), "");
  const SegmentTiming usage = core_.usage();
  EXPECT_EQ(usage.hbm_read.value, 20 * 128 * 512 * 2);
  EXPECT_EQ(usage.hbm_written.value, 128 * 512 * 4);
  EXPECT_GE(core_.end(), usage.slices.back().end.value);
}

TEST_F(NeuronCoreTest, StateIsRelativeToTheClock) {
  const auto state = [&] {
    std::vector<std::int64_t> out;
    core_.append_state(out, now_ps());
    return out;
  };
  const isa::Program program = tiny_gemm(4);
  start(program);
  const auto first = state();
  run_until_idle();
  sc_core::sc_start(duration_ps(12'345'678));
  start(program);
  EXPECT_EQ(state(), first);
  run_until_idle();
}

TEST_F(NeuronCoreTest, ListsWhoWaits) {
  isa::Program stuck = tiny_gemm(4);
  stuck.segments[0].queues[0][0].updates.clear();
  start(stuck);
  run_until_idle();
  EXPECT_THAT(core_.waiting(),
              ::testing::HasSubstr("sync waits at instruction 1 for semaphore 1 >= 1 (holds 0)"));
}

}  // namespace
}  // namespace trellis::sim
