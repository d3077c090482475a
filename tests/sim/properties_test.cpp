#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/sim/tiny_program.h"

// Laws that every timing obeys, tried on random pipelines of loads, matmuls, copies and stores.
namespace trellis::sim {
namespace {

using isa::testing::tiny_gemm;

struct RandomPipeline {
  isa::Program program;
  std::int64_t matmul_columns = 0;
};

RandomPipeline random_pipeline(std::mt19937& rng) {
  const std::int64_t iterations = 1 + static_cast<std::int64_t>(rng() % 60);
  const int columns = 64 << (rng() % 4);
  RandomPipeline p{tiny_gemm(iterations, columns), iterations * columns};
  auto& segment = p.program.segments[0];
  if (rng() % 2 == 0) {  // independent work for two more engines
    isa::Instruction copy = segment.queues[1][0];
    copy.waits.clear();
    copy.updates.clear();
    copy.src0 = copy.dst;
    copy.opcode = isa::Opcode::kActivation;
    copy.activation = static_cast<isa::Activation>(rng() % 12);
    for (std::uint32_t n = rng() % 40; n > 0; --n) segment.queues[2].push_back(copy);
    copy.opcode = isa::Opcode::kTensorCopy;
    for (std::uint32_t n = rng() % 10; n > 0; --n) segment.queues[3].push_back(copy);
  }
  if (rng() % 2 == 0) {  // another queue group competes
    isa::Instruction load = segment.queues[4][1];
    load.waits.clear();
    load.updates.clear();
    load.src0.loop_stride = {};
    load.dma_queue = isa::DmaQueue::kSpill;
    for (std::uint32_t n = rng() % 20; n > 0; --n) segment.queues[3].push_back(load);
  }
  return p;
}

TEST(TimingLaws, RandomPipelinesAreLegal) {
  std::mt19937 rng(1);
  for (int i = 0; i < 100; ++i) {
    const auto found = isa::validate(random_pipeline(rng).program, isa::testing::trn2_limits());
    ASSERT_TRUE(found.empty()) << found[0].text;
  }
}

TEST(TimingLaws, NothingBeatsTheArrayTheHbmOrTheDmaEngines) {
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge"}) {
    const SystemConfig system = load_system(instance);
    Simulator simulator(system);
    std::mt19937 rng(2);
    for (int i = 0; i < 60; ++i) {
      const RandomPipeline p = random_pipeline(rng);
      const SegmentTiming t = simulator.time_program(p.program).segments[0];
      const double seconds = to_seconds(t.duration);
      const double flops = 2.0 * 128 * 128 * static_cast<double>(p.matmul_columns);
      EXPECT_LE(flops / seconds, system.peak_per_logical_core().value);
      const auto hbm = static_cast<double>((t.hbm_read + t.hbm_written).value);
      EXPECT_LE(hbm / seconds, system.chip.hbm_bandwidth.value / system.logical_cores_per_chip());
      EXPECT_LE(hbm / seconds,
                system.chip.core.dma.engine_rate.value * system.chip.core.dma.engines);
      EXPECT_LE((t.tensor_active + t.compute_only + t.dma_only).value, t.duration.value);
    }
  }
}

/// Timing of the same pipelines before and after a change of the hardware.
void expect_never_slower(const std::function<void(SystemConfig&)>& improve) {
  const SystemConfig base = load_system("trn2.48xlarge");
  SystemConfig better = base;
  improve(better);
  std::vector<std::int64_t> before;
  for (const SystemConfig* system : {&base, static_cast<const SystemConfig*>(&better)}) {
    Simulator simulator(*system);
    std::mt19937 rng(3);
    for (int i = 0; i < 40; ++i) {
      const std::int64_t duration =
          simulator.time_program(random_pipeline(rng).program).segments[0].duration.value;
      if (system == &base) {
        before.push_back(duration);
      } else {
        // Sharing by turns may move a boundary by a descriptor: 1 % of slack.
        EXPECT_LE(duration, before[static_cast<std::size_t>(i)] * 101 / 100) << i;
      }
    }
  }
}

TEST(TimingLaws, TwiceTheHbmBandwidthNeverSlows) {
  expect_never_slower([](SystemConfig& s) { s.chip.hbm_bandwidth = s.chip.hbm_bandwidth * 2.0; });
}

TEST(TimingLaws, TwiceTheDmaRateNeverSlows) {
  expect_never_slower(
      [](SystemConfig& s) { s.chip.core.dma.engine_rate = s.chip.core.dma.engine_rate * 2.0; });
}

TEST(TimingLaws, TwiceTheTensorClockNeverSlows) {
  expect_never_slower(
      [](SystemConfig& s) { s.chip.core.tensor.clock = s.chip.core.tensor.clock * 2.0; });
}

TEST(TimingLaws, MoreIterationsTakeLonger) {
  Simulator simulator(load_system("trn2.48xlarge"));
  std::int64_t last = 0;
  for (std::int64_t n = 1; n < 40; ++n) {
    const std::int64_t duration = simulator.time_program(tiny_gemm(n)).segments[0].duration.value;
    EXPECT_GT(duration, last) << n;
    last = duration;
  }
}

/// A loop must cost what its unrolled form costs.
TEST(TimingLaws, ALoopEqualsItsUnrolledForm) {
  Simulator simulator(load_system("trn1.32xlarge"));
  const isa::Program looped = tiny_gemm(9);
  isa::Program unrolled = looped;
  for (auto& queue : unrolled.segments[0].queues) {
    std::vector<isa::Instruction> flat;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      if (queue[i].opcode != isa::Opcode::kLoop) {
        flat.push_back(queue[i]);
        continue;
      }
      std::size_t end = i;
      while (queue[end].opcode != isa::Opcode::kEndLoop) ++end;
      for (int n = 0; n < 9; ++n)
        flat.insert(flat.end(), queue.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                    queue.begin() + static_cast<std::ptrdiff_t>(end));
      i = end;
    }
    queue = flat;
  }
  EXPECT_EQ(simulator.time_program(looped), simulator.time_program(unrolled));
}

}  // namespace
}  // namespace trellis::sim
