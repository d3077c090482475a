#include "device/compiler/emit/transpose.h"

#include <algorithm>
#include <functional>

namespace trellis::device {
namespace {

constexpr std::int64_t kP = 128;
constexpr std::int64_t kBlock = 512;
constexpr std::int64_t kWorthwhile =
    4096;  // elements: below, slow descriptors cost less than a phase

/// The dimension with stride 1 that is not `inner`; rank when there is none.
std::size_t contiguous_dimension(const HbmView& v, std::size_t inner) {
  for (std::size_t d = 0; d < v.rank(); ++d) {
    if (d != inner && v.sizes[d] > 1 && v.strides[d] == 1) return d;
  }
  return v.rank();
}

class TransposeLowering {
 public:
  TransposeLowering(std::uint32_t kernel, const HbmView& source, const HbmView& target,
                    std::size_t from, std::size_t to)
      : phase_(kernel), source_(source), target_(target), from_(from), to_(to) {}

  Phase run() {
    std::vector<std::int64_t> sizes;
    std::vector<std::vector<std::int64_t>> strides(2);
    for (std::size_t d = 0; d < source_.rank(); ++d) {
      if (d == from_ || d == to_) continue;
      sizes.push_back(source_.sizes[d]);
      strides[0].push_back(source_.strides[d]);
      strides[1].push_back(target_.strides[d]);
    }
    if (!sizes.empty()) collapse(sizes, strides);
    std::function<void(std::size_t, Index, Index)> walk = [&](std::size_t d, Index in, Index out) {
      if (d == sizes.size()) return blocks(in, out);
      phase_.loop(sizes[d], [&](const Index& i) {
        walk(d + 1, in + i * strides[0][d], out + i * strides[1][d]);
      });
    };
    walk(0, source_.offset, target_.offset);
    return std::move(phase_);
  }

 private:
  /// `from` is contiguous in the source, `to` in the target.
  void blocks(const Index& in, const Index& out) {
    phase_.tiles(source_.sizes[from_], kBlock, [&](const Index& f0, std::int64_t f) {
      phase_.tiles(source_.sizes[to_], kBlock, [&](const Index& t0, std::int64_t t) {
        block(in + f0 + t0 * source_.strides[to_], f, t, out + t0 + f0 * target_.strides[from_]);
      });
    });
  }

  void block(const Index& in, std::int64_t f, std::int64_t t, const Index& out) {
    const int size = isa::size_bytes(source_.dtype);
    std::vector<TileId> raw;
    for (std::int64_t t1 = 0; t1 < t; t1 += kP) {
      const int rows = static_cast<int>(std::min(kP, t - t1));
      raw.push_back(phase_.sbuf(f * size, 2));
      phase_.load(
          phase_.at(raw.back(), source_.dtype, rows, row(f)),
          Phase::hbm(source_.buffer, source_.dtype, rows, source_.strides[to_],
                     {{1, static_cast<std::int32_t>(f)}}, in + Index(t1 * source_.strides[to_])));
    }
    for (std::int64_t f1 = 0; f1 < f; f1 += kP) {
      const int columns = static_cast<int>(std::min(kP, f - f1));
      const TileId bank = phase_.psum(1);
      const TileId transposed = phase_.sbuf(t * size, 2);
      for (std::size_t i = 0; i < raw.size(); ++i) {
        const std::int64_t t1 = static_cast<std::int64_t>(i) * kP, rows = std::min(kP, t - t1);
        phase_.transpose(
            phase_.at(bank, isa::DType::kFp32, columns, row(rows), t1),
            phase_.at(raw[i], source_.dtype, static_cast<int>(rows), row(columns), f1));
      }
      phase_.copy(f1 / kP % 2 == 0 ? isa::Engine::kVector : isa::Engine::kScalar,
                  phase_.at(transposed, target_.dtype, columns, row(t)),
                  phase_.at(bank, isa::DType::kFp32, columns, row(t)));
      phase_.store(
          Phase::hbm(target_.buffer, target_.dtype, columns, target_.strides[from_],
                     {{1, static_cast<std::int32_t>(t)}}, out + Index(f1 * target_.strides[from_])),
          phase_.at(transposed, target_.dtype, columns, row(t)));
    }
  }

  Phase phase_;
  const HbmView& source_;
  const HbmView& target_;
  std::size_t from_, to_;
};

}  // namespace

bool worth_transposing(const HbmView& source, std::size_t inner) {
  return source.elements() >= kWorthwhile && contiguous_dimension(source, inner) != source.rank();
}

HbmView transpose_to_scratch(ProgramBuilder& builder, std::uint32_t kernel, const HbmView& source) {
  std::size_t to = source.rank() - 1;
  while (to > 0 && source.sizes[to] == 1) --to;
  const HbmView target =
      contiguous(builder.scratch(source.elements() * isa::size_bytes(source.dtype)), source.dtype,
                 source.sizes);
  builder.append(
      TransposeLowering(kernel, source, target, contiguous_dimension(source, to), to).run());
  return target;
}

}  // namespace trellis::device
