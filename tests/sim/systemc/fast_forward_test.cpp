#include "sim/systemc/fast_forward.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/sim/random_loops.h"

// Skipped iterations must not show: to the picosecond and the byte.
namespace trellis::sim {
namespace {

constexpr TimeOptions kStepByStep{.fast_forward = false, .neighbour_load = {}};

TEST(FastForward, EqualsStepByStepOnRandomLoops) {
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge", "trn3-gen1"}) {
    const SystemConfig system = load_system(instance);
    Simulator simulator(system);
    for (std::uint32_t seed = 0; seed < 400; ++seed) {
      const isa::Program program = isa::testing::RandomLoops(seed).make(120);
      const auto broken = isa::validate(program, system.chip.core.limits);
      ASSERT_TRUE(broken.empty()) << seed << ": " << broken[0].text;
      ASSERT_EQ(simulator.time_program(program), simulator.time_program(program, kStepByStep))
          << instance << ", seed " << seed;
    }
  }
}

TEST(FastForward, EqualsStepByStepOnRandomPairs) {
  Simulator simulator(load_system("trn2.48xlarge", {.logical_core_size = 1, .overrides = {}}));
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const isa::Program first = isa::testing::RandomLoops(seed).make(80);
    const isa::Program second = isa::testing::RandomLoops(seed % 3 == 0 ? seed : seed + 1).make(80);
    ASSERT_EQ(simulator.time_pair(first, second), simulator.time_pair(first, second, kStepByStep))
        << seed;
  }
}

/// A barrier on every engine that loops, and an exchange on some, in each iteration of its first
/// loop.
isa::Program with_meetings(isa::Program program, bool exchange) {
  for (std::size_t e = 0; e < isa::kNumEngines; ++e) {
    auto& queue = program.segments[0].queues[e];
    const auto loop = std::find_if(queue.begin(), queue.end(), [](const isa::Instruction& i) {
      return i.opcode == isa::Opcode::kLoop;
    });
    if (loop == queue.end()) continue;
    isa::Instruction meeting;
    meeting.opcode = exchange && e % 2 == 0 ? isa::Opcode::kSendRecv : isa::Opcode::kCoreBarrier;
    if (meeting.opcode == isa::Opcode::kSendRecv)
      meeting.dst = meeting.src0 = isa::testing::tile(1, isa::DType::kBf16, 128, 256);
    queue.insert(loop + 1, meeting);
  }
  return program;
}

TEST(FastForward, EqualsStepByStepOnPairsThatMeet) {
  Simulator simulator(load_system("trn2.48xlarge", {.logical_core_size = 1, .overrides = {}}));
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const isa::Program first =
        with_meetings(isa::testing::RandomLoops(seed).make(80), seed % 2 == 0);
    isa::Program second = first;  // as often as the first, but not as fast
    for (auto& queue : second.segments[0].queues) {
      for (auto& i : queue) {
        if (i.opcode == isa::Opcode::kTensorCopy) i.dst.dims[0].count = i.src0.dims[0].count = 32;
      }
    }
    ASSERT_EQ(simulator.time_pair(first, second), simulator.time_pair(first, second, kStepByStep))
        << seed;
  }
}

TEST(FastForward, MakesALongLoopCostWhatAShortOneCosts) {
  // A thousand times the iterations; only the skip can do it in the time of a test.
  Simulator simulator(load_system("trn2.48xlarge"));
  const auto timing = [&](std::int64_t n) {
    return simulator.time_program(isa::testing::tiny_gemm(n)).segments[0];
  };
  const SegmentTiming a = timing(1'000'000'000);
  const SegmentTiming b = timing(2'000'000'000);
  const SegmentTiming c = timing(3'000'000'000);
  EXPECT_EQ(c.duration - b.duration, b.duration - a.duration);
  EXPECT_EQ(c.hbm_read.value, 3'000'000'000 * 128 * 512 * 2);
  EXPECT_EQ(c.tensor_active, c.busy[0]);
}

}  // namespace
}  // namespace trellis::sim
