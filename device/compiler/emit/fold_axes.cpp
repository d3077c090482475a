#include "device/compiler/emit/fold_axes.h"

#include <algorithm>
#include <functional>

namespace trellis::device {
namespace {

constexpr std::int64_t kShortFold = 64;   // bytes: of less, descriptors from HBM to HBM are as good
constexpr std::int64_t kLongFold = 2048;  // bytes: longer ones gain little

/// Extends a part along a run of axes up to `elements` of it.
void extend(Part& part, const Axes& axes, const std::vector<std::size_t>& run,
            std::int64_t elements) {
  std::int64_t length = 1;
  for (const std::size_t a : run) {
    if (length >= elements) return;
    const std::int64_t wanted = (elements + length - 1) / length;
    part[a] = std::max(part[a], std::min(axes[a].size, wanted));
    length *= part[a];
    if (part[a] < axes[a].size) return;
  }
}

std::int64_t elements_of(const Part& part) {
  std::int64_t n = 1;
  for (const std::int64_t size : part) n *= size;
  return n;
}

std::int64_t run_elements(const Part& part, const Axes& axes, const std::vector<std::size_t>& run) {
  std::int64_t length = 1;
  for (const std::size_t a : run) {
    length *= part[a];
    if (part[a] < axes[a].size) break;
  }
  return length;
}

/// The axis whose blocks lie on the partitions: the one with most of them.
std::size_t lanes_of(const Axes& axes, const Part& part) {
  std::size_t best = 0;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].size / part[a] > axes[best].size / part[best]) best = a;
  }
  return best;
}

/// How fast a part moves: its shorter run, up to what a descriptor's floor moves at the engines'
/// rate, on the partitions that it fills, over which the engines are spread.
std::int64_t speed_of(const Axes& axes, const Part& part, std::int64_t from_bytes,
                      std::int64_t to_bytes) {
  constexpr std::int64_t kFullRate = 1024;  // bytes
  const std::size_t lanes = lanes_of(axes, part);
  return std::min({from_bytes, to_bytes, kFullRate}) *
         std::min(axes[lanes].size / part[lanes], kLayoutPartitions);
}

class FoldLowering {
 public:
  FoldLowering(std::uint32_t kernel, const HbmView& source, const HbmView& target, const Fold& fold)
      : phase_(kernel), source_(source), target_(target), fold_(fold), step_(fold.step) {}

  Phase run() {
    whole(fold_.axes, source_.offset, target_.offset);
    return std::move(phase_);
  }

 private:
  void whole(const Axes& axes, const Index& in, const Index& out) {
    Part part = fold_.part;
    for (std::size_t a = 0; a < axes.size(); ++a) part[a] = std::min(part[a], axes[a].size);
    const std::size_t lanes = lanes_of(axes, part);
    const std::int64_t blocks = axes[lanes].size / part[lanes],
                       rest = axes[lanes].size % part[lanes];
    loops(axes, part, {lanes, stack_of(axes, part, lanes)}, 0, {1, 0, 0}, in, out);
    if (rest == 0) return;
    Axes left = axes;
    left[lanes].size = rest;
    const std::int64_t done = blocks * part[lanes];
    whole(left, in + Index(done * axes[lanes].in), out + Index(done * axes[lanes].out));
  }

  /// The axis whose blocks lie on the partitions, and another one whose blocks do where the first
  /// one leaves partitions free: `axes.size()`: none.
  struct Spread {
    std::size_t lanes, stack;
  };
  static std::size_t stack_of(const Axes& axes, const Part& part, std::size_t lanes) {
    if (axes[lanes].size / part[lanes] > kLayoutPartitions / 2) return axes.size();
    std::size_t best = axes.size();
    std::int64_t most = 1;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const std::int64_t blocks = axes[a].size / part[a];
      if (a == lanes || blocks <= most) continue;
      most = blocks;
      best = a;
    }
    return best;
  }

  void loops(const Axes& axes, const Part& part, const Spread& spread, std::size_t a,
             const Axis& stack, const Index& in, const Index& out) {
    const Axis& lanes = axes[spread.lanes];
    const std::int64_t width = part[spread.lanes], blocks = lanes.size / width;
    if (a == axes.size()) {
      phase_.tiles(blocks, kLayoutPartitions, [&](const Index& b, std::int64_t partitions) {
        block(axes, part, {partitions, lanes.in * width, lanes.out * width}, stack,
              in + b * (lanes.in * width), out + b * (lanes.out * width));
      });
      return;
    }
    if (a == spread.lanes || part[a] == axes[a].size)
      return loops(axes, part, spread, a + 1, stack, in, out);
    const std::int64_t high = a == spread.stack ? kLayoutPartitions / spacing(blocks) : 1;
    const std::int64_t parts = axes[a].size / part[a];
    const std::int64_t in_stride = axes[a].in * part[a], out_stride = axes[a].out * part[a];
    phase_.tiles(parts, std::min(high, parts), [&](const Index& i, std::int64_t count) {
      loops(axes, part, spread, a + 1,
            a == spread.stack ? Axis{count, in_stride, out_stride} : stack, in + i * in_stride,
            out + i * out_stride);
    });
    if (axes[a].size % part[a] == 0) return;
    phase_.scope([&] {
      Part last = part;
      last[a] = axes[a].size % part[a];
      loops(axes, last, {spread.lanes, axes.size()}, a + 1, stack, in + Index(parts * in_stride),
            out + Index(parts * out_stride));
    });
  }

  /// One part on each of `lanes.size` × `stack.size` partitions.
  void block(const Axes& axes, const Part& part, const Axis& lanes, const Axis& stack,
             const Index& in, const Index& out) {
    Axes inner;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      if (part[a] > 1) inner.push_back({part[a], axes[a].in, axes[a].out});
    }
    if (inner.empty()) inner.push_back({1, 1, 1});
    const std::int64_t elements = elements_of(part);
    // As it lies in the source, without what is between runs; steps are loaded with what they skip.
    Axes by_source = inner;
    std::stable_sort(by_source.begin(), by_source.end(),
                     [](const auto& x, const auto& y) { return x.in > y.in; });
    std::vector<std::int64_t> at(by_source.size());
    std::int64_t length = by_source.back().in == step_ ? step_ : 1;
    for (std::size_t a = by_source.size(); a-- > 0; length *= by_source[a].size) at[a] = length;
    Dims from, raw_dims;
    for (std::size_t a = 0; a < by_source.size(); ++a) {
      const bool last = a + 1 == by_source.size();
      const bool steps = last && by_source[a].in > 1 && by_source[a].in == step_;
      const auto count = static_cast<std::int32_t>(steps ? (by_source[a].size - 1) * step_ + 1
                                                         : by_source[a].size);
      add_dim(from, raw_dims, {steps ? 1 : by_source[a].in, count}, {steps ? 1 : at[a], count});
    }
    const TileId raw = phase_.sbuf(length * isa::size_bytes(source_.dtype), 2),
                 folded = phase_.sbuf(elements * isa::size_bytes(target_.dtype), 2);
    for (std::int64_t i = 0; i < stack.size; ++i) {
      const Partitions here{lanes.size, i * spacing(lanes.size), lanes.in},
          there{lanes.size, i * spacing(lanes.size), lanes.out};
      load(raw, raw_dims, from, here, in + Index(i * stack.in));
      permute(raw, folded, by_source, at, here);
      store(folded, inner, there, out + Index(i * stack.out));
    }
  }

  static void add_dim(Dims& one, Dims& other, const isa::Dim& x, const isa::Dim& y) {
    if (!one.empty() && one.back().stride == x.stride * x.count &&
        other.back().stride == y.stride * y.count) {
      one.back() = {x.stride, one.back().count * x.count};
      other.back() = {y.stride, other.back().count * y.count};
      return;
    }
    one.push_back(x), other.push_back(y);
  }

  /// Loops, written out, over the dimensions that an access pattern has no room for.
  static void each(
      const Dims& one, const Dims& other,
      const std::function<void(const Dims&, const Dims&, std::int64_t, std::int64_t)>& body) {
    const std::size_t most = isa::kMaxFreeDims - 1;
    if (one.size() <= most) return body(one, other, 0, 0);
    const Dims inner(one.begin() + 1, one.end()), inner_other(other.begin() + 1, other.end());
    for (std::int64_t i = 0; i < one[0].count; ++i) {
      each(inner, inner_other, [&](const Dims& x, const Dims& y, std::int64_t p, std::int64_t q) {
        body(x, y, p + i * one[0].stride, q + i * other[0].stride);
      });
    }
  }

  struct Partitions {
    std::int64_t count, first, stride;  ///< stride: in HBM
  };
  /// Up to 32 partitions start at a multiple of 32, up to 64 at one of 64.
  static std::int64_t spacing(std::int64_t lanes) {
    return lanes > 64 ? kLayoutPartitions : lanes > 32 ? 64 : 32;
  }
  [[nodiscard]] Ref on(const Partitions& p, TileId tile, isa::DType dtype, const Dims& dims,
                       std::int64_t offset) const {
    Ref ref = phase_.at(tile, dtype, static_cast<int>(p.count), dims, offset);
    ref.pattern.start_partition = static_cast<std::uint16_t>(p.first);
    return ref;
  }

  void load(TileId raw, const Dims& to, const Dims& from, const Partitions& lanes,
            const Index& in) {
    phase_.scatter(raw);
    each(to, from, [&](const Dims& x, const Dims& y, std::int64_t p, std::int64_t q) {
      phase_.load(on(lanes, raw, source_.dtype, x, p),
                  Phase::hbm(source_.buffer, source_.dtype, static_cast<int>(lanes.count),
                             lanes.stride, y, in + Index(q)));
    });
  }

  /// From the source's order to the target's.
  void permute(TileId raw, TileId folded, const Axes& by_source,
               const std::vector<std::int64_t>& at, const Partitions& lanes) {
    std::vector<std::size_t> order(by_source.size());
    for (std::size_t a = 0; a < order.size(); ++a) order[a] = a;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return by_source[x].out > by_source[y].out;
    });
    Dims to, from;
    std::int64_t dense = 1;
    std::vector<std::int64_t> strides(order.size());
    for (std::size_t i = order.size(); i-- > 0; dense *= by_source[order[i]].size)
      strides[i] = dense;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto count = static_cast<std::int32_t>(by_source[order[i]].size);
      add_dim(to, from, {strides[i], count}, {at[order[i]], count});
    }
    phase_.scatter(folded);
    each(to, from, [&](const Dims& x, const Dims& y, std::int64_t p, std::int64_t q) {
      halves(x, y, p, q,
             [&](isa::Engine engine, const Dims& a, const Dims& b, std::int64_t r, std::int64_t s) {
               phase_.copy(engine, on(lanes, folded, target_.dtype, a, r),
                           on(lanes, raw, source_.dtype, b, s));
             });
    });
  }

  /// Vector and Scalar take one half each.
  template <typename Body>
  static void halves(Dims x, Dims y, std::int64_t p, std::int64_t q, Body body) {
    const std::int32_t count = x[0].count, half = count / 2;
    if (half > 0) {
      x[0].count = y[0].count = half;
      body(isa::Engine::kScalar, x, y, p, q);
    }
    x[0].count = y[0].count = count - half;
    body(isa::Engine::kVector, x, y, p + half * x[0].stride, q + half * y[0].stride);
  }

  void store(TileId folded, const Axes& inner, const Partitions& lanes, const Index& out) {
    Dims to, from;
    std::int64_t dense = 1;
    std::vector<std::int64_t> strides(inner.size());
    for (std::size_t a = inner.size(); a-- > 0; dense *= inner[a].size) strides[a] = dense;
    for (std::size_t a = 0; a < inner.size(); ++a) {
      const auto count = static_cast<std::int32_t>(inner[a].size);
      add_dim(to, from, {inner[a].out, count}, {strides[a], count});
    }
    each(to, from, [&](const Dims& x, const Dims& y, std::int64_t p, std::int64_t q) {
      phase_.store(Phase::hbm(target_.buffer, target_.dtype, static_cast<int>(lanes.count),
                              lanes.stride, x, out + Index(p)),
                   on(lanes, folded, target_.dtype, y, q));
    });
  }

  Phase phase_;
  const HbmView& source_;
  const HbmView& target_;
  const Fold& fold_;
  std::int64_t step_;
};

}  // namespace

std::optional<Fold> plan_fold(const Axes& axes, std::int64_t size, std::int64_t tile_bytes) {
  const auto from = run_of(axes, &Axis::in), to = run_of(axes, &Axis::out);
  const std::int64_t step = axes[from[0]].in;
  if (axes[to[0]].out != 1 || step < 1 || step > kWidestLayoutStep) return std::nullopt;
  std::optional<Fold> best;
  std::int64_t most = 0;
  for (std::int64_t bytes = kLongFold; bytes >= kShortFold; bytes /= 2) {
    Part part(axes.size(), 1);
    extend(part, axes, from, std::max<std::int64_t>(bytes / size / step, 1));
    extend(part, axes, to, bytes / size);
    if (elements_of(part) * size * step > tile_bytes) continue;
    const std::int64_t from_bytes = run_elements(part, axes, from) * size * step,
                       to_bytes = run_elements(part, axes, to) * size;
    if (std::min(from_bytes, to_bytes) < kShortFold) continue;
    const std::int64_t speed = speed_of(axes, part, from_bytes, to_bytes);
    if (speed <= most) continue;
    most = speed;
    best = Fold{axes, step, std::move(part), std::min(from_bytes, to_bytes)};
  }
  return best;
}

Phase fold_axes(std::uint32_t kernel, const HbmView& source, const HbmView& target,
                const Fold& fold) {
  return FoldLowering(kernel, source, target, fold).run();
}

}  // namespace trellis::device
