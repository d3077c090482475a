#include "sim/neuron_core/busy_meter.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace trellis::sim {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

constexpr unsigned bit(isa::Engine engine) { return 1u << static_cast<unsigned>(engine); }
constexpr unsigned kTensorMask = bit(isa::Engine::kTensor);
constexpr unsigned kComputeMask =
    bit(isa::Engine::kVector) | bit(isa::Engine::kScalar) | bit(isa::Engine::kGpSimd);
constexpr unsigned kDmaMask = ((1u << isa::kNumDmaQueues) - 1) << isa::kNumEngines;

}  // namespace

void BusyMeter::reset(std::int64_t now, std::size_t kernels) {
  base_ = swept_ = now;
  buffered_ = 0;
  for (auto& list : intervals_) list.clear();
  slices_.assign(kernels * kNumTracks, {});
  sums_.fill(0);
  skipped_ = 0;
  for (auto& list : pieces_) list.clear();
}

void BusyMeter::note_piece(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end,
                           std::int64_t bytes) {
  auto& list = pieces_[static_cast<std::size_t>(track)];
  const Picoseconds from(begin - base_), to(end - base_);
  if (!list.empty() && list.back().end == from && list.back().kernel == kernel) {
    list.back().end = to;
    list.back().busy += to - from;
    list.back().bytes += Bytes(bytes);
  } else {
    list.push_back({kernel, static_cast<std::uint8_t>(track), from, to, to - from, Bytes(bytes)});
  }
}

void BusyMeter::add(unsigned active, std::int64_t duration) {
  if (active & kTensorMask) {
    sums_[kTensorActive] += duration;
  } else if (active & kComputeMask) {
    sums_[kComputeOnly] += duration;
  } else if (active & kDmaMask) {
    sums_[kDmaOnly] += duration;
  }
}

/// Walks over all boundaries between `swept_` and the frontier; between two of them the set of
/// active tracks is constant.
void BusyMeter::sweep(std::int64_t frontier) {
  struct Cursor {
    const Interval* next;
    const Interval* end;
    unsigned bit;
  };
  std::array<Cursor, kNumTracks> cursors;
  std::size_t used = 0;
  for (std::size_t track = 0; track < kNumTracks; ++track) {
    const auto& list = intervals_[track];
    if (!list.empty()) cursors[used++] = {list.data(), list.data() + list.size(), 1u << track};
  }
  std::int64_t t = swept_;
  while (t < frontier) {
    unsigned active = 0;
    std::int64_t boundary = kForever;
    for (std::size_t i = 0; i < used; ++i) {
      Cursor& c = cursors[i];
      while (c.next != c.end && c.next->end <= t) ++c.next;
      if (c.next == c.end) continue;
      const bool running = c.next->begin <= t;
      active |= running ? c.bit : 0u;
      boundary = std::min(boundary, running ? c.next->end : c.next->begin);
    }
    if (boundary == kForever) break;
    boundary = std::min(boundary, frontier);
    add(active, boundary - t);
    t = boundary;
  }
  swept_ = frontier;
  drop_swept();
}

/// Forgets the intervals that end before the frontier.
void BusyMeter::drop_swept() {
  buffered_ = 0;
  for (auto& list : intervals_) {
    const auto keep = std::partition_point(list.begin(), list.end(),
                                           [this](const Interval& i) { return i.end <= swept_; });
    list.erase(list.begin(), keep);
    buffered_ += list.size();
  }
}

void BusyMeter::read(Totals& totals, std::int64_t now, std::uint32_t first_kernel,
                     std::uint32_t end_kernel) {
  sweep(now);
  totals.sums = sums_;
  totals.first_kernel = first_kernel;
  totals.slices.assign(slices_.begin() + first_kernel * kNumTracks,
                       slices_.begin() + end_kernel * kNumTracks);
}

void BusyMeter::repeat(const Totals& since, std::int64_t now, std::int64_t times,
                       std::int64_t period) {
  sweep(now);
  const auto more = [times](std::int64_t& value, std::int64_t before) {
    value += times * (value - before);
  };
  for (std::size_t i = 0; i < sums_.size(); ++i) more(sums_[i], since.sums[i]);
  for (std::size_t i = 0; i < since.slices.size(); ++i) {
    Slice& slice = slices_[since.first_kernel * kNumTracks + i];
    const Slice& before = since.slices[i];
    more(slice.busy, before.busy);
    more(slice.bytes, before.bytes);
    if (slice.end != before.end) slice.end += times * period;
  }
  skipped_ += times * period;
}

void BusyMeter::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  for (const auto& list : intervals_) {
    auto from = list.end();
    while (from != list.begin() && (from - 1)->end > now) --from;
    out.push_back(list.end() - from);
    for (; from != list.end(); ++from) {
      out.push_back(std::max<std::int64_t>(from->begin - now, 0));
      out.push_back(from->end - now);
    }
  }
}

void BusyMeter::finish(SegmentTiming& timing) {
  sweep(kForever);
  for (std::size_t t = 0; t < kNumTracks; ++t) timing.busy[t] = Picoseconds(sums_[t]);
  timing.tensor_active = Picoseconds(sums_[kTensorActive]);
  timing.compute_only = Picoseconds(sums_[kComputeOnly]);
  timing.dma_only = Picoseconds(sums_[kDmaOnly]);
  timing.pieces.clear();
  for (const auto& list : pieces_)
    timing.pieces.insert(timing.pieces.end(), list.begin(), list.end());
  timing.slices.clear();
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const Slice& s = slices_[i];
    if (s.begin < 0) continue;
    timing.slices.push_back({static_cast<std::uint32_t>(i / kNumTracks),
                             static_cast<std::uint8_t>(i % kNumTracks),
                             Picoseconds(s.begin - base_), Picoseconds(s.end - base_),
                             Picoseconds(s.busy), Bytes(s.bytes)});
  }
  std::sort(timing.slices.begin(), timing.slices.end(),
            [](const KernelSlice& a, const KernelSlice& b) {
              return std::tie(a.track, a.start, a.kernel) < std::tie(b.track, b.start, b.kernel);
            });
}

}  // namespace trellis::sim
