#include "device/compiler/emit/exchange_axes.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace trellis::device {
namespace {

constexpr std::int64_t kExchangeBlock = 512;
constexpr std::int64_t kMostInner = 64;
constexpr std::int64_t kRawBytes = 64 * 1024;  // of a block as it came, all partitions of it

/// Exchanges two axes 128 × 128 elements at a time.
class ExchangeLowering {
 public:
  ExchangeLowering(std::uint32_t kernel, const HbmView& source, const HbmView& target,
                   Exchange plan)
      : phase_(kernel),
        source_(source),
        target_(target),
        plan_(std::move(plan)),
        inner_(plan_.inner_size()) {}

  Phase run() {
    walk(0, source_.offset, target_.offset);
    return std::move(phase_);
  }

 private:
  void walk(std::size_t a, const Index& in, const Index& out) {
    if (a == plan_.outer.size()) return blocks(in, out);
    phase_.loop(plan_.outer[a].size, [&](const Index& i) {
      walk(a + 1, in + i * plan_.outer[a].in, out + i * plan_.outer[a].out);
    });
  }

  void blocks(const Index& in, const Index& out) {
    const std::int64_t most =
                           std::max(kExchangeBlock / inner_ / kLayoutPartitions * kLayoutPartitions,
                                    kLayoutPartitions),
                       raw = most * inner_ * isa::size_bytes(source_.dtype);
    const std::int64_t tall =
        std::clamp(kRawBytes / raw * kLayoutPartitions, kLayoutPartitions, kExchangeBlock);
    phase_.tiles(plan_.from.size, most, [&](const Index& f0, std::int64_t f) {
      phase_.tiles(plan_.to.size, tall, [&](const Index& t0, std::int64_t t) {
        block(in + f0 * inner_ + t0 * plan_.to.in, f, t, out + t0 + f0 * plan_.from.out);
      });
    });
  }

  void block(const Index& in, std::int64_t f, std::int64_t t, const Index& out) {
    const int size = isa::size_bytes(source_.dtype);
    std::vector<TileId> raw;
    for (std::int64_t t1 = 0; t1 < t; t1 += kLayoutPartitions) {
      const int rows = static_cast<int>(std::min(kLayoutPartitions, t - t1));
      raw.push_back(phase_.sbuf(f * inner_ * size, 2));
      phase_.load(phase_.at(raw.back(), source_.dtype, rows, row(f * inner_)),
                  Phase::hbm(source_.buffer, source_.dtype, rows, plan_.to.in, row(f * inner_),
                             in + Index(t1 * plan_.to.in)));
    }
    std::vector<Stage> stages;
    for (std::int64_t i = 0;
         i < std::min<std::int64_t>(kStages,
                                    inner_ * ((f + kLayoutPartitions - 1) / kLayoutPartitions));
         ++i)
      stages.push_back({phase_.psum(1), phase_.sbuf(t * isa::size_bytes(target_.dtype), 2)});
    std::size_t turn = 0;
    for (std::int64_t i = 0; i < inner_; ++i) {
      for (std::int64_t f1 = 0; f1 < f; f1 += kLayoutPartitions, ++turn)
        columns(raw, stages[turn % stages.size()], turn,
                {std::min(kLayoutPartitions, f - f1), i + f1 * inner_,
                 inner_out(i) + f1 * plan_.from.out},
                t, out);
    }
  }

  /// Where the i-th element inside `from` belongs.
  [[nodiscard]] std::int64_t inner_out(std::int64_t i) const {
    std::int64_t out = 0;
    for (std::size_t a = plan_.inner.size(); a-- > 0; i /= plan_.inner[a].size)
      out += i % plan_.inner[a].size * plan_.inner[a].out;
    return out;
  }

  /// Where a block of columns waits on its way.
  struct Stage {
    TileId bank, transposed;
  };
  static constexpr std::int64_t kStages = 4;

  /// Columns of `from` that are transposed together: `in` is their first element in the raw tiles.
  struct Columns {
    std::int64_t count, in, out;
  };
  void columns(const std::vector<TileId>& raw, const Stage& stage, std::size_t turn,
               const Columns& part, std::int64_t t, const Index& out) {
    const int count = static_cast<int>(part.count);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const std::int64_t t1 = static_cast<std::int64_t>(i) * kLayoutPartitions,
                         rows = std::min(kLayoutPartitions, t - t1);
      phase_.transpose(
          phase_.at(stage.bank, isa::DType::kFp32, count, row(rows), t1),
          phase_.at(raw[i], source_.dtype, static_cast<int>(rows), {{inner_, count}}, part.in));
    }
    const Ref transposed = phase_.at(stage.transposed, target_.dtype, count, row(t));
    phase_.copy(turn % 2 == 0 ? isa::Engine::kVector : isa::Engine::kScalar, transposed,
                phase_.at(stage.bank, isa::DType::kFp32, count, row(t)));
    phase_.store(Phase::hbm(target_.buffer, target_.dtype, count, plan_.from.out, row(t),
                            out + Index(part.out)),
                 transposed);
  }

  Phase phase_;
  const HbmView& source_;
  const HbmView& target_;
  Exchange plan_;
  std::int64_t inner_;
};

}  // namespace

std::optional<Exchange> plan_exchange(const Axes& axes) {
  const std::size_t to = axes.size() - 1;
  if (axes[to].out != 1 || axes[to].size < kLayoutPartitions / 2) return std::nullopt;
  const auto run = run_of(axes, &Axis::in);
  if (axes[run[0]].in != 1) return std::nullopt;
  Exchange plan{{}, axes[to], {}, {}};
  std::vector<bool> used(axes.size(), false);
  used[to] = true;
  for (const std::size_t a : run) {
    if (a == to || plan.inner_size() > kMostInner) return std::nullopt;
    used[a] = true;
    if (axes[a].size >= kLayoutPartitions / 2) {
      plan.from = axes[a];
      for (std::size_t o = 0; o < axes.size(); ++o) {
        if (!used[o]) plan.outer.push_back(axes[o]);
      }
      return plan;
    }
    plan.inner.insert(plan.inner.begin(), axes[a]);
  }
  return std::nullopt;
}

Phase exchange_axes(std::uint32_t kernel, const HbmView& source, const HbmView& target,
                    const Exchange& plan) {
  return ExchangeLowering(kernel, source, target, plan).run();
}

}  // namespace trellis::device
