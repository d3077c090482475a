#include "sim/systemc/core_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "sim/config/load_system.h"
#include "tests/sim/core_fixture.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::testing::tiny_gemm;

class OneCoreTest : public SystemCTest {
 protected:
  CoreTiming time(const isa::Program& program, const SystemConfig& system) {
    pair_.configure(system);
    return pair_.time(program, {});
  }
  CorePair pair_{"pair"};
};

TEST_F(OneCoreTest, SameProgramTwiceGivesTheSameTiming) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const CoreTiming first = time(tiny_gemm(100), system);
  (void)time(tiny_gemm(7), system);
  EXPECT_EQ(time(tiny_gemm(100), system), first);
}

TEST_F(OneCoreTest, TheWholeChainTakesItsPublishedLatency) {
  // One load of 128 KiB, one matmul, one copy, one store on Trn1: the sum of trigger, DMA latency,
  // data, engine and semaphore times.
  const SystemConfig system = load_system("trn1.32xlarge");
  const SegmentTiming t = time(tiny_gemm(1), system).segments.at(0);
  const DmaConfig& dma = system.chip.core.dma;
  const std::int64_t transfer = dma.trigger_time.value + dma.fixed_latency.value +
                                dma.semaphore_write.value + dma.completion_latency.value;
  const std::int64_t load = transfer + 8 * 60'236;
  const std::int64_t matmul = 182'858 + 142'858 + 28'000;
  const std::int64_t copy = 457'143 + 142'858 + 28'000;
  const std::int64_t store = transfer + 8 * 120'471;
  EXPECT_NEAR(static_cast<double>(t.duration.value),
              static_cast<double>(load + 28'000 + matmul + copy + store), 60'000);
  EXPECT_EQ(t.hbm_read.value, 128 * 512 * 2);
  EXPECT_EQ(t.hbm_written.value, 128 * 512 * 4);
}

TEST_F(OneCoreTest, ShortDeadlocksNameEnginesAndSemaphoresAndLeaveTheCoreUsable) {
  const SystemConfig system = load_system("trn1.32xlarge");
  isa::Program stuck = tiny_gemm(4);
  stuck.segments[0].queues[0][0].updates.clear();  // no one frees the first buffer
  try {
    (void)time(stuck, system);
    FAIL() << "expected a deadlock";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("sync waits at instruction 1 for semaphore 1 >= 1 (holds 0)"));
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("vector waits at instruction 0 for semaphore 2"));
  }
  EXPECT_GT(time(tiny_gemm(4), system).segments.at(0).duration.value, 0);
}

TEST_F(OneCoreTest, LongLoopsApproachTheDmaBound) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const std::int64_t n = 2000;
  const SegmentTiming t = time(tiny_gemm(n), system).segments.at(0);
  const double bytes = static_cast<double>(n) * 128 * 512 * 2;
  const double bound = bytes / (16 * 17e9) * 1e12;
  EXPECT_GE(static_cast<double>(t.duration.value), bound);
  EXPECT_EQ(t.hbm_read.value, static_cast<std::int64_t>(bytes));
}

TEST_F(OneCoreTest, BusyTimesPartitionTheDuration) {
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge"}) {
    const SegmentTiming t = time(tiny_gemm(50), load_system(instance)).segments.at(0);
    EXPECT_EQ(t.tensor_active, t.busy[0]);
    EXPECT_LE((t.tensor_active + t.compute_only + t.dma_only).value, t.duration.value);
    std::array<std::int64_t, kNumTracks> from_slices{};
    for (const auto& slice : t.slices) {
      from_slices[slice.track] += slice.busy.value;
      EXPECT_LE(slice.end.value, t.duration.value);
    }
    for (int track = 0; track < kNumTracks; ++track)
      EXPECT_EQ(from_slices[track], t.busy[track].value) << track;
  }
}

/// Both cores of a Trn2 pair.
class CorePairTest : public SystemCTest {
 protected:
  CorePairTest() { pair_.configure(system_); }
  PairTiming time(const isa::Program& first, const isa::Program& second) {
    return pair_.time_both(first, second, {});
  }
  CoreTiming alone(const isa::Program& program, double neighbour_load) {
    return pair_.time(program, {.neighbour_load = BytesPerSecond(neighbour_load)});
  }
  static isa::Program on_engine(isa::Engine engine, std::vector<isa::Instruction> instructions) {
    isa::Program p = tiny_gemm(1);
    p.segments[0] = {};
    p.segments[0].queues[static_cast<std::size_t>(engine)] = std::move(instructions);
    return p;
  }
  static isa::Instruction barrier() {
    isa::Instruction i;
    i.opcode = isa::Opcode::kCoreBarrier;
    return i;
  }
  static isa::Instruction exchange(int columns) {
    isa::Instruction i;
    i.opcode = isa::Opcode::kSendRecv;
    i.dst = isa::testing::tile(5, isa::DType::kFp32, 128, columns);
    i.src0 = isa::testing::tile(5, isa::DType::kFp32, 128, columns);
    return i;
  }

  const SystemConfig system_ =
      load_system("trn2.48xlarge", {.logical_core_size = 1, .overrides = {}});
  CorePair pair_{"pair"};
};

TEST_F(CorePairTest, EqualCoresTakeEquallyLongAndShareTheStack) {
  const PairTiming both = time(tiny_gemm(500), tiny_gemm(500));
  const SegmentTiming& a = both.cores[0].segments[0];
  const SegmentTiming& b = both.cores[1].segments[0];
  // The stack serves them one after the other; no more than that is between them.
  EXPECT_NEAR(static_cast<double>(a.duration.value), static_cast<double>(b.duration.value),
              0.001 * static_cast<double>(a.duration.value));
  EXPECT_LE(a.duration, b.duration);  // the first core wins ties
  EXPECT_EQ(a.hbm_read, b.hbm_read);
  EXPECT_EQ(both.duration, std::max(a.duration, b.duration));
  EXPECT_GE(both.duration, alone(tiny_gemm(500), 0).segments[0].duration);
}

TEST_F(CorePairTest, AnIdleCoreLeavesTheStackToTheOther) {
  isa::Program idle;
  idle.segments.resize(1);
  const PairTiming both = time(tiny_gemm(500), idle);
  EXPECT_EQ(both.cores[0], alone(tiny_gemm(500), 0));
  EXPECT_EQ(both.cores[1].segments[0].duration.value, 0);
}

TEST_F(CorePairTest, TheNeighboursLoadSlowsUpToTheFairShare) {
  const auto duration = [&](double load) {
    return alone(tiny_gemm(2000), load).segments[0].duration.value;
  };
  EXPECT_LE(duration(0), duration(300e9));
  EXPECT_LE(duration(300e9), duration(800e9));
  EXPECT_EQ(duration(800e9), duration(1600e9));
  EXPECT_EQ(duration(0), pair_.time(tiny_gemm(2000), {}).segments[0].duration.value);
}

TEST_F(CorePairTest, ABarrierBlocksOnlyItsEngineUntilTheOtherCoreComes) {
  isa::Program early = on_engine(isa::Engine::kVector, {barrier()});
  isa::Program late = tiny_gemm(8);
  late.segments[0].queues[1].push_back(barrier());
  const PairTiming t = time(early, late);
  const CoreTiming without = alone(tiny_gemm(8), 0);
  // The copy out of PSUM is the last thing on the late core's vector engine.
  const auto& slices = without.segments[0].slices;
  const auto copy =
      std::find_if(slices.begin(), slices.end(), [](const KernelSlice& s) { return s.track == 1; });
  ASSERT_NE(copy, slices.end());
  EXPECT_EQ(t.cores[0].segments[0].duration, copy->end + system_.chip.core.core_barrier);
  EXPECT_EQ(t.cores[1].segments[0].slices, slices);
}

TEST_F(CorePairTest, AnExchangeStartsWhenBothHaveCome) {
  const isa::Program early = on_engine(isa::Engine::kSync, {exchange(512)});
  isa::Program late = early;
  isa::Instruction wait;
  wait.waits = {{9, 1}};
  isa::Instruction signal = tiny_gemm(1).segments[0].queues[1][0];
  signal.waits.clear();
  signal.updates = {{9, 1}};
  late.segments[0].queues[1].push_back(signal);
  late.segments[0].queues[4].insert(late.segments[0].queues[4].begin(), wait);
  const std::int64_t together = time(early, early).duration.value;
  const PairTiming t = time(early, late);
  EXPECT_EQ(t.cores[0].segments[0].duration, t.cores[1].segments[0].duration);
  const std::int64_t copy = t.cores[1].segments[0].busy[1].value;
  EXPECT_GT(copy, 0);
  EXPECT_GT(t.duration.value, together + copy);
  EXPECT_EQ(t.cores[0].segments[0].hbm_read.value, 0);
}

TEST_F(CorePairTest, DeadlocksNameTheCoreAndWhatItWaitsFor) {
  isa::Program nothing;
  nothing.segments.resize(1);
  const auto text = [&](const isa::Program& first, const isa::Program& second) -> std::string {
    try {
      (void)time(first, second);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text(nothing, on_engine(isa::Engine::kScalar, {barrier()})),
              ::testing::HasSubstr("core 1:\n  scalar waits at instruction 0, a core_barrier that "
                                   "the other core never reaches"));
  EXPECT_THAT(
      text(on_engine(isa::Engine::kSync, {exchange(8), exchange(8)}),
           on_engine(isa::Engine::kSync, {exchange(8)})),
      ::testing::HasSubstr("core 0:\n  sync has 1 send_recv that the other core never meets"));
  EXPECT_THAT(text(on_engine(isa::Engine::kSync, {exchange(8)}),
                   on_engine(isa::Engine::kSync, {exchange(16)})),
              ::testing::HasSubstr(
                  "sync meets with a send_recv of 8192 B one of 4096 B on the other core"));
  EXPECT_GT(time(tiny_gemm(4), tiny_gemm(4)).duration.value, 0);
}

TEST_F(CorePairTest, WhatNeedsAPairIsRefusedWithoutOne) {
  EXPECT_THROW((void)pair_.time(on_engine(isa::Engine::kVector, {barrier()}), {}), ConfigError);
  isa::Program two = tiny_gemm(1);
  two.segments.emplace_back();
  EXPECT_THROW((void)time(tiny_gemm(1), two), ConfigError);
  pair_.configure(load_system("trn2.48xlarge"));  // logical cores of two physical ones
  EXPECT_THROW((void)time(tiny_gemm(1), tiny_gemm(1)), ConfigError);
  EXPECT_THROW((void)alone(tiny_gemm(1), 1e9), ConfigError);
}

}  // namespace
}  // namespace trellis::sim
