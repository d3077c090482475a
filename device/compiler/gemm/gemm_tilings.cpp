#include "device/compiler/gemm/gemm_tilings.h"

#include <algorithm>
#include <array>

#include "device/compiler/gemm/array_sizes.h"

namespace trellis::device {
namespace {

using isa::DType;
using isa::Engine;

constexpr std::int64_t kMostTilingSlots = 128;  // tiles of one operand on their way

class Tiling {
 public:
  Tiling(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm)
      : gemm_(gemm),
        phase_(kernel),
        m_(gemm.c.sizes[0]),
        n_(gemm.c.sizes[1]),
        k_(gemm.a.sizes[1]),
        a_bytes_(isa::size_bytes(gemm.a.dtype)),
        b_bytes_(isa::size_bytes(gemm.b.dtype)),
        sbuf_(builder.sbuf_bytes()) {}

  Phase tiled() {
    const std::int64_t slots =
        std::min(kMostTilingSlots, free_bytes(0) / (kP * a_bytes_ + kMoving * b_bytes_));
    phase_.loop(m_ / kP, [&](const Index& m) {
      phase_.loop(n_ / kMoving, [&](const Index& n) {
        const TileId sum = phase_.psum(), out = result();
        phase_.loop(k_ / kP, [&](const Index& k) {
          const TileId a = phase_.sbuf(kP * a_bytes_, static_cast<int>(slots)),
                       b = phase_.sbuf(kMoving * b_bytes_, static_cast<int>(slots));
          load_a(a, m, k, 0);
          load_b(b, n, k);
          product(sum, a, 0, b);
        });
        finish(m, n, sum, out);
      });
    });
    return std::move(phase_);
  }

  /// `rows` × `columns` tiles of c at a time.
  Phase hoisted(std::int64_t rows, std::int64_t columns) {
    const std::int64_t row_bytes = k_ / kP * rows * kP * a_bytes_;
    const std::int64_t slots = std::clamp<std::int64_t>(
        free_bytes(2 * row_bytes) / (columns * kMoving * b_bytes_), 2, kMostTilingSlots);
    phase_.double_buffered_loop(m_ / kP / rows, [&](const Index& mb) {
      const TileId a = phase_.sbuf(row_bytes, 2);
      phase_.scatter(a);
      phase_.loop(k_ / kP, [&](const Index& k) {
        for (std::int64_t r = 0; r < rows; ++r)
          load_a(a, mb * rows + Index(r), k, (k * rows + Index(r)) * kP);
      });
      phase_.loop(n_ / kMoving / columns, [&](const Index& nb) {
        block(a, mb, nb, rows, columns, static_cast<int>(slots));
      });
    });
    return std::move(phase_);
  }

 private:
  [[nodiscard]] std::int64_t free_bytes(std::int64_t taken) const {
    return sbuf_ - taken - 8 * kMoving * 4 - 4096;
  }

  void block(TileId a, const Index& mb, const Index& nb, std::int64_t rows, std::int64_t columns,
             int slots) {
    std::array<TileId, 4> sums{}, outs{};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      sums[static_cast<std::size_t>(i)] = phase_.psum();
      outs[static_cast<std::size_t>(i)] = result();
    }
    phase_.loop(k_ / kP, [&](const Index& k) {
      std::array<TileId, 2> b{};
      for (std::int64_t c = 0; c < columns; ++c) {
        b[static_cast<std::size_t>(c)] = phase_.sbuf(kMoving * b_bytes_, slots);
        load_b(b[static_cast<std::size_t>(c)], nb * columns + Index(c), k);
      }
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        product(sums[static_cast<std::size_t>(i)], a, (k * rows + Index(i / columns)) * kP,
                b[static_cast<std::size_t>(i % columns)]);
      }
    });
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      finish(mb * rows + Index(i / columns), nb * columns + Index(i % columns),
             sums[static_cast<std::size_t>(i)], outs[static_cast<std::size_t>(i)]);
    }
  }

  /// Tile (k, m) of a, k on the partitions.
  void load_a(TileId into, const Index& m, const Index& k, const Index& at) {
    const HbmView& v = gemm_.a;
    phase_.load(phase_.at(into, v.dtype, kP, row(kP), at),
                Phase::hbm(v.buffer, v.dtype, kP, v.strides[1], {{v.strides[0], kP}},
                           Index(v.offset) + m * (kP * v.strides[0]) + k * (kP * v.strides[1])));
  }
  void load_b(TileId into, const Index& n, const Index& k) {
    const HbmView& v = gemm_.b;
    phase_.load(
        phase_.at(into, v.dtype, kP, row(kMoving)),
        Phase::hbm(v.buffer, v.dtype, kP, v.strides[0], {{v.strides[1], kMoving}},
                   Index(v.offset) + n * (kMoving * v.strides[1]) + k * (kP * v.strides[0])));
  }

  /// In the loop over K.
  void product(TileId sum, TileId a, const Index& at, TileId b) {
    const auto array = [&](DType d) {
      return d == DType::kFp32 && !gemm_.four_passes ? DType::kTf32 : d;
    };
    phase_.matmul(phase_.at(sum, DType::kFp32, kP, row(kMoving)),
                  phase_.at(a, array(gemm_.a.dtype), kP, row(kP), at),
                  phase_.at(b, array(gemm_.b.dtype), kP, row(kMoving)), true, true);
  }

  /// Made before the loop over K, whose tiles must not share memory with it: they are loaded ahead
  /// of the store.
  TileId result() { return phase_.sbuf(kMoving * isa::size_bytes(gemm_.c.dtype), 2); }

  void finish(const Index& m, const Index& n, TileId sum, TileId tile) {
    const HbmView& v = gemm_.c;
    const Ref out = phase_.at(tile, v.dtype, kP, row(kMoving));
    phase_.copy(Engine::kVector, out, phase_.at(sum, DType::kFp32, kP, row(kMoving)));
    phase_.store(
        Phase::hbm(v.buffer, v.dtype, kP, v.strides[0], {{v.strides[1], kMoving}},
                   Index(v.offset) + m * (kP * v.strides[0]) + n * (kMoving * v.strides[1])),
        out);
  }

  const Gemm& gemm_;
  Phase phase_;
  std::int64_t m_, n_, k_;
  int a_bytes_, b_bytes_;
  std::int64_t sbuf_;
};

}  // namespace

void lower_gemm_tiling(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm,
                       GemmTiling tiling) {
  Tiling t(builder, kernel, gemm);
  switch (tiling) {
    case GemmTiling::kTiled: return builder.append(t.tiled());
    case GemmTiling::kHoisted: return builder.append(t.hoisted(1, 1));
    case GemmTiling::kBlockedFree: return builder.append(t.hoisted(2, 2));
  }
}

}  // namespace trellis::device
