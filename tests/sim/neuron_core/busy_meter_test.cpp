#include "sim/neuron_core/busy_meter.h"

#include <gtest/gtest.h>

#include <random>

namespace trellis::sim {
namespace {

constexpr int kTensor = 0, kVector = 1, kSync = 4, kDmaLoad = 5;

TEST(BusyMeter, SplitsTimeByWhoWorks) {
  BusyMeter m;
  m.reset(1000, 1);
  m.record(kTensor, 0, 1000, 1100);
  m.record(kVector, 0, 1050, 1200);
  m.record(kDmaLoad, 0, 1000, 1300, 64);
  m.record(kSync, 0, 1350, 1400);  // a sequencer alone is idle time
  SegmentTiming t;
  m.finish(t);
  EXPECT_EQ(t.tensor_active.value, 100);
  EXPECT_EQ(t.compute_only.value, 100);
  EXPECT_EQ(t.dma_only.value, 100);
  EXPECT_EQ(t.busy[kSync].value, 50);
  EXPECT_EQ(t.slices.size(), 4u);
  EXPECT_EQ(t.slices.back().bytes.value, 64);
}

/// Random intervals against a picture with one cell per picosecond; settling in between must change
/// nothing.
TEST(BusyMeter, AgreesWithAPictureDrawnCellByCell) {
  std::mt19937 rng(7);
  BusyMeter m;
  m.reset(0, 3);
  const int cells = 5000;
  std::vector<unsigned> picture(cells * 2);
  std::array<int, kNumTracks> at{};
  for (int step = 0; step < 3000; ++step) {
    const int track = static_cast<int>(rng() % kNumTracks);
    const int begin = at[track] + static_cast<int>(rng() % 8);
    const int end = begin + static_cast<int>(rng() % 9);
    if (end >= cells) continue;
    m.record(track, rng() % 3, begin, end);
    for (int c = begin; c < end; ++c) picture[c] |= 1u << track;
    at[track] = end;
  }
  SegmentTiming t;
  m.finish(t);
  std::int64_t tensor = 0, compute = 0, dma = 0;
  for (const unsigned mask : picture) {
    if (mask & 1u) {
      ++tensor;
    } else if (mask & 0b01110u) {
      ++compute;
    } else if (mask >> 5) {
      ++dma;
    }
  }
  EXPECT_EQ(t.tensor_active.value, tensor);
  EXPECT_EQ(t.compute_only.value, compute);
  EXPECT_EQ(t.dma_only.value, dma);
}

TEST(BusyMeter, SettlingKeepsTheSums) {
  BusyMeter a, b;
  a.reset(0, 1);
  b.reset(0, 1);
  for (std::int64_t i = 0; i < 100'000; ++i) {
    for (BusyMeter* m : {&a, &b}) {
      m->record(kTensor, 0, i * 3000, i * 3000 + 1000);
      m->record(kVector, 0, i * 3000 + 500, i * 3000 + 2000);
    }
    b.settle(i * 3000);
  }
  SegmentTiming ta, tb;
  a.finish(ta);
  b.finish(tb);
  EXPECT_EQ(ta, tb);
  EXPECT_EQ(ta.tensor_active.value, 100'000'000);
  EXPECT_EQ(ta.compute_only.value, 100'000'000);
}

}  // namespace
}  // namespace trellis::sim
