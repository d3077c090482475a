#include "sim/neuron_core/busy_meter.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace trellis::sim {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

constexpr unsigned bit(isa::Engine engine) { return 1u << static_cast<unsigned>(engine); }
constexpr unsigned kTensorMask = bit(isa::Engine::kTensor);
constexpr unsigned kComputeMask = bit(isa::Engine::kVector) | bit(isa::Engine::kScalar) | bit(isa::Engine::kGpSimd);
constexpr unsigned kDmaMask = ((1u << isa::kNumDmaQueues) - 1) << isa::kNumEngines;

}  // namespace

void BusyMeter::reset(std::int64_t now, std::size_t kernels) {
  base_ = swept_ = now;
  buffered_ = 0;
  for (auto& list : intervals_) list.clear();
  slices_.assign(kernels * kNumTracks, {});
  busy_.fill(0);
  tensor_active_ = compute_only_ = dma_only_ = 0;
}

void BusyMeter::add(unsigned active, std::int64_t duration) {
  for (int t = 0; t < kNumTracks; ++t) {
    if ((active >> t) & 1u) busy_[static_cast<std::size_t>(t)] += duration;
  }
  if (active & kTensorMask) {
    tensor_active_ += duration;
  } else if (active & kComputeMask) {
    compute_only_ += duration;
  } else if (active & kDmaMask) {
    dma_only_ += duration;
  }
}

/// Walks over all boundaries between `swept_` and the frontier; between two of them the set of active tracks is constant.
void BusyMeter::sweep(std::int64_t frontier) {
  std::array<std::size_t, kNumTracks> next{};
  std::int64_t t = swept_;
  while (t < frontier) {
    unsigned active = 0;
    std::int64_t boundary = kForever;
    for (std::size_t track = 0; track < kNumTracks; ++track) {
      const auto& list = intervals_[track];
      std::size_t& i = next[track];
      while (i < list.size() && list[i].end <= t) ++i;
      if (i == list.size()) continue;
      const bool running = list[i].begin <= t;
      active |= static_cast<unsigned>(running) << track;
      boundary = std::min(boundary, running ? list[i].end : list[i].begin);
    }
    if (boundary == kForever) break;
    boundary = std::min(boundary, frontier);
    add(active, boundary - t);
    t = boundary;
  }
  swept_ = frontier;
  buffered_ = 0;
  for (std::size_t track = 0; track < kNumTracks; ++track) {
    auto& list = intervals_[track];
    list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(next[track]));
    buffered_ += list.size();
  }
}

void BusyMeter::finish(SegmentTiming& timing) {
  sweep(kForever);
  for (std::size_t t = 0; t < kNumTracks; ++t) timing.busy[t] = Picoseconds(busy_[t]);
  timing.tensor_active = Picoseconds(tensor_active_);
  timing.compute_only = Picoseconds(compute_only_);
  timing.dma_only = Picoseconds(dma_only_);
  timing.slices.clear();
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const Slice& s = slices_[i];
    if (s.begin < 0) continue;
    timing.slices.push_back({static_cast<std::uint32_t>(i / kNumTracks), static_cast<std::uint8_t>(i % kNumTracks), Picoseconds(s.begin - base_),
        Picoseconds(s.end - base_), Picoseconds(s.busy), Bytes(s.bytes)});
  }
  std::sort(timing.slices.begin(), timing.slices.end(), [](const KernelSlice& a, const KernelSlice& b) {
    return std::tie(a.track, a.start, a.kernel) < std::tie(b.track, b.start, b.kernel);
  });
}

}  // namespace trellis::sim
