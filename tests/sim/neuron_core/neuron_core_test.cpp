#include "sim/neuron_core/neuron_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/sim/core_fixture.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim {
namespace {

using isa::testing::tiny_gemm;

class NeuronCoreTest : public SystemCTest {
 protected:
  CoreTiming time(const isa::Program& program, const SystemConfig& system) {
    core_.configure(system);
    return core_.time(program);
  }
  NeuronCore core_{"core"};
};

TEST_F(NeuronCoreTest, SameProgramTwiceGivesTheSameTiming) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const CoreTiming first = time(tiny_gemm(100), system);
  (void)time(tiny_gemm(7), system);
  EXPECT_EQ(time(tiny_gemm(100), system), first);
}

TEST_F(NeuronCoreTest, TheWholeChainTakesItsPublishedLatency) {
  // One load of 128 KiB, one matmul, one copy, one store on Trn1: the sum of trigger, DMA latency, data, engine and semaphore times.
  const SystemConfig system = load_system("trn1.32xlarge");
  const SegmentTiming t = time(tiny_gemm(1), system).segments.at(0);
  const std::int64_t load = 75'000 + 920'000 + 8 * 62'000 + 300'000;
  const std::int64_t matmul = 182'858 + 142'858 + 28'000;
  const std::int64_t copy = 457'143 + 142'858 + 28'000;
  const std::int64_t store = 75'000 + 920'000 + 8 * 120'471 + 300'000;
  EXPECT_NEAR(static_cast<double>(t.duration.value), static_cast<double>(load + 28'000 + matmul + copy + store), 60'000);
  EXPECT_EQ(t.hbm_read.value, 128 * 512 * 2);
  EXPECT_EQ(t.hbm_written.value, 128 * 512 * 4);
}

TEST_F(NeuronCoreTest, ShortDeadlocksNameEnginesAndSemaphoresAndLeaveTheCoreUsable) {
  const SystemConfig system = load_system("trn1.32xlarge");
  isa::Program stuck = tiny_gemm(4);
  stuck.segments[0].queues[0][0].updates.clear();  // nobody frees the first buffer
  try {
    (void)time(stuck, system);
    FAIL() << "expected a deadlock";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sync waits at instruction 1 for semaphore 1 >= 1 (holds 0)"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("vector waits at instruction 0 for semaphore 2"));
  }
  EXPECT_GT(time(tiny_gemm(4), system).segments.at(0).duration.value, 0);
}

TEST_F(NeuronCoreTest, LongLoopsApproachTheDmaBound) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const std::int64_t n = 2000;
  const SegmentTiming t = time(tiny_gemm(n), system).segments.at(0);
  const double bytes = static_cast<double>(n) * 128 * 512 * 2;
  const double bound = bytes / (16 * 17e9) * 1e12;
  EXPECT_GE(static_cast<double>(t.duration.value), bound);
  EXPECT_EQ(t.hbm_read.value, static_cast<std::int64_t>(bytes));
}

TEST_F(NeuronCoreTest, BusyTimesPartitionTheDuration) {
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge"}) {
    const SegmentTiming t = time(tiny_gemm(50), load_system(instance)).segments.at(0);
    EXPECT_EQ(t.tensor_active, t.busy[0]);
    EXPECT_LE((t.tensor_active + t.compute_only + t.dma_only).value, t.duration.value);
    std::array<std::int64_t, kNumTracks> from_slices{};
    for (const auto& slice : t.slices) {
      from_slices[slice.track] += slice.busy.value;
      EXPECT_LE(slice.end.value, t.duration.value);
    }
    for (int track = 0; track < kNumTracks; ++track) EXPECT_EQ(from_slices[track], t.busy[track].value) << track;
  }
}

}  // namespace
}  // namespace trellis::sim
