#include "device/compiler/gemm/gemm_batched.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/integer_math.h"
#include "device/compiler/gemm/array_sizes.h"

namespace trellis::device {
namespace {

using isa::DType;
using isa::Engine;

constexpr std::int64_t kBank = 512;         // fp32 in a PSUM bank
constexpr std::int64_t kLargest = 512;      // rows, columns and depth of one matrix
constexpr std::int64_t kFewest = 4;         // matrices
constexpr std::int64_t kMostTogether = 32;  // matrices that share a transfer

std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }

/// `count` matrices, each with `size` elements in a row: one run where they lie side by side.
Dims runs(std::int64_t batch_stride, std::int64_t count, std::int64_t stride, std::int64_t size) {
  if (stride == 1 && batch_stride == size) return row(count * size);
  return {{batch_stride, narrow(count)}, {stride, narrow(size)}};
}

/// a or b as the array needs it: its depth on the partitions, its rows (of a) or columns (of b)
/// after each other.
struct BatchedSide {
  std::uint32_t buffer = 0;
  DType dtype = DType::kBf16;
  std::int64_t offset = 0, batch_stride = 0, row_stride = 0, depth_stride = 0, rows = 0;
  std::vector<std::int64_t> outer_strides;
  bool transposed =
      false;  ///< depth is contiguous: rows come on chip, and the array transposes them
};

class BatchedGemm {
 public:
  BatchedGemm(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm)
      : gemm_(gemm),
        phase_(kernel),
        dma_(builder.core().dma),
        transposed_v3_(builder.core().limits.core_version >= 3) {
    const std::size_t r = gemm.c.rank();
    k_ = gemm.a.sizes[r - 1];
    std::vector<std::int64_t> sizes(gemm.c.sizes.begin(), gemm.c.sizes.end() - 2);
    std::vector<std::vector<std::int64_t>> strides;
    for (const HbmView* v : {&gemm.c, &gemm.a, &gemm.b})
      strides.emplace_back(v->strides.begin(), v->strides.end() - 2);
    collapse(sizes, strides);
    batch_ = sizes.back();
    sizes.pop_back();
    outer_ = sizes;
    c_ = side(gemm.c, r - 2, r - 1, strides[0]);
    a_ = side(gemm.a, r - 2, r - 1, strides[1]);
    b_ = side(gemm.b, r - 1, r - 2, strides[2]);
    const std::int64_t each =
        bytes_of(a_) + bytes_of(b_) + ceil_div(a_.rows, kP) * b_.rows * isa::size_bytes(c_.dtype);
    together_ = std::min({batch_, kMostTogether, builder.sbuf_bytes() * 4 / 5 / 2 / each});
  }

  [[nodiscard]] bool fits() const {
    return batch_ >= kFewest && together_ >= 2 && outer_.size() <= 1;
  }

  Phase run() {
    phase_.loop(outer_.empty() ? 1 : outer_[0], [&](const Index& i) {
      outer_index_ = i;
      phase_.double_buffered_loop(batch_ / together_,
                                  [&](const Index& g) { group(g * together_, together_); });
      if (batch_ % together_ != 0)
        phase_.scope([&] { group(Index(batch_ / together_ * together_), batch_ % together_); });
    });
    return std::move(phase_);
  }

 private:
  static BatchedSide side(const HbmView& v, std::size_t rows, std::size_t depth,
                          std::vector<std::int64_t> batch) {
    BatchedSide s{v.buffer,         v.dtype,       v.offset, batch.back(), v.strides[rows],
                  v.strides[depth], v.sizes[rows], {},       false};
    s.transposed = s.depth_stride == 1 && (s.row_stride != 1 || s.rows == 1);
    batch.pop_back();
    s.outer_strides = std::move(batch);
    return s;
  }

  /// Per partition, of one matrix.
  [[nodiscard]] std::int64_t bytes_of(const BatchedSide& s) const {
    const std::int64_t size = isa::size_bytes(s.dtype);
    return ceil_div(k_, kP) * s.rows * size + (s.transposed ? ceil_div(s.rows, kP) * k_ * size : 0);
  }

  [[nodiscard]] Index place(const BatchedSide& s, const Index& first) const {
    Index at = Index(s.offset) + first * s.batch_stride;
    return s.outer_strides.empty() ? at : at + outer_index_ * s.outer_strides[0];
  }

  void group(const Index& first, std::int64_t count) {
    const TileId a = bring(a_, first, count), b = bring(b_, first, count);
    multiply(a, b, first, count);
  }

  /// body(first matrix, how many) for each transfer of matrices of `rows` rows: all together, or
  /// each alone when it has no gaps.
  template <typename Body>
  void transfers(std::int64_t count, bool dense, std::int64_t rows, std::int64_t row_bytes,
                 Body body) {
    if (!dense || !worth_a_transfer(static_cast<double>(rows), static_cast<double>(row_bytes)))
      return body(Index(0), count);
    phase_.loop(count, [&](const Index& m) { body(m, 1); });
  }

  /// Transfers of many matrices jump from one to the next, so that they reach a part of HBM only;
  /// each alone must be triggered.
  [[nodiscard]] bool worth_a_transfer(double rows, double row_bytes) const {
    const double engines = dma_.engines * dma_.engine_rate.value,
                 shared = std::min(engines, dma_.hbm_rate.value * dma_.hbm_part(row_bytes));
    return std::max(to_seconds(dma_.trigger_time), rows * row_bytes / engines) <
           rows * row_bytes / shared;
  }

  /// [k on 128 partitions, matrix, k tile, rows]
  TileId bring(const BatchedSide& s, const Index& first, std::int64_t count) {
    const std::int64_t size = isa::size_bytes(s.dtype), depth_tiles = ceil_div(k_, kP);
    const TileId into = phase_.sbuf(count * depth_tiles * s.rows * size, 2);
    if (s.transposed) return phase_.scatter(into), transpose(s, first, count, into), into;
    for (std::int64_t t = 0; t < depth_tiles; ++t) {
      const int deep = static_cast<int>(std::min(kP, k_ - t * kP));
      transfers(
          count, s.row_stride == 1 && s.depth_stride == s.rows, deep, s.rows * size,
          [&](const Index& m, std::int64_t n) {
            phase_.load(
                phase_.at(into, s.dtype, deep, runs(depth_tiles * s.rows, n, 1, s.rows),
                          m * (depth_tiles * s.rows) + Index(t * s.rows)),
                Phase::hbm(s.buffer, s.dtype, deep, s.depth_stride,
                           runs(s.batch_stride, n, s.row_stride, s.rows),
                           place(s, first) + m * s.batch_stride + Index(t * kP * s.depth_stride)));
          });
    }
    return into;
  }

  void transpose(const BatchedSide& s, const Index& first, std::int64_t count, TileId into) {
    const std::int64_t size = isa::size_bytes(s.dtype), row_tiles = ceil_div(s.rows, kP),
                       depth_tiles = ceil_div(k_, kP);
    const TileId raw = phase_.sbuf(row_tiles * count * k_ * size, 2);
    for (std::int64_t t = 0; t < row_tiles; ++t) {
      const int rows = static_cast<int>(std::min(kP, s.rows - t * kP));
      transfers(count, s.row_stride == k_, rows, k_ * size, [&](const Index& m, std::int64_t n) {
        phase_.load(
            phase_.at(raw, s.dtype, rows, row(n * k_), m * k_ + Index(t * count * k_)),
            Phase::hbm(s.buffer, s.dtype, rows, s.row_stride, runs(s.batch_stride, n, 1, k_),
                       place(s, first) + m * s.batch_stride + Index(t * kP * s.row_stride)));
      });
    }
    const DType transposed = transposed_v3_ && size == 2 ? s.dtype : DType::kFp32;
    for (std::int64_t t = 0; t < depth_tiles; ++t) {
      const int deep = static_cast<int>(std::min(kP, k_ - t * kP));
      in_banks(
          count, std::max<std::int64_t>(1, kBank / s.rows),
          [&](const Index& m, std::int64_t n, Engine engine) {
            const TileId bank = phase_.psum();
            for (std::int64_t i = 0; i < n; ++i) {
              for (std::int64_t r = 0; r < row_tiles; ++r) {
                const std::int64_t rows = std::min(kP, s.rows - r * kP);
                phase_.transpose(phase_.at(bank, transposed, deep, row(rows), i * s.rows + r * kP),
                                 phase_.at(raw, s.dtype, static_cast<int>(rows), row(deep),
                                           (m + Index(i)) * k_ + Index(r * count * k_ + t * kP)));
              }
            }
            phase_.copy(engine,
                        phase_.at(into, s.dtype, deep, runs(depth_tiles * s.rows, n, 1, s.rows),
                                  m * (depth_tiles * s.rows) + Index(t * s.rows)),
                        phase_.at(bank, transposed, deep, row(n * s.rows)));
          });
    }
  }

  /// body(first matrix, how many, who copies them out of the bank), for as many matrices as a bank
  /// holds. Vector and Scalar take turns.
  template <typename Body>
  void in_banks(std::int64_t count, std::int64_t each, Body body) {
    const std::int64_t pairs = count / (2 * each);
    phase_.loop(pairs, [&](const Index& i) {
      body(i * (2 * each), each, Engine::kVector);
      body(i * (2 * each) + Index(each), each, Engine::kScalar);
    });
    Engine engine = Engine::kVector;
    for (std::int64_t at = pairs * 2 * each; at < count; at += each) {
      phase_.scope([&] {
        body(Index(at), std::min(each, count - at), std::exchange(engine, Engine::kScalar));
      });
    }
  }

  void multiply(TileId a, TileId b, const Index& first, std::int64_t count) {
    const std::int64_t m = a_.rows, n = b_.rows, depth_tiles = ceil_div(k_, kP),
                       row_tiles = ceil_div(m, kP);
    const TileId out = phase_.sbuf(row_tiles * count * n * isa::size_bytes(c_.dtype), 2);
    phase_.scatter(out);
    const DType a_array = array_dtype(a_.dtype, gemm_.four_passes),
                b_array = array_dtype(b_.dtype, gemm_.four_passes);
    for (std::int64_t t = 0; t < row_tiles; ++t) {
      const int rows = static_cast<int>(std::min(kP, m - t * kP));
      in_banks(
          count, std::max<std::int64_t>(1, kBank / n),
          [&](const Index& g, std::int64_t together, Engine engine) {
            const TileId bank = phase_.psum();
            for (std::int64_t i = 0; i < together; ++i) {
              const Ref sum = phase_.at(bank, DType::kFp32, rows, row(n), i * n);
              for (std::int64_t d = 0; d < depth_tiles; ++d) {
                const int deep = static_cast<int>(std::min(kP, k_ - d * kP));
                phase_.matmul(sum,
                              phase_.at(a, a_array, deep, row(rows),
                                        (g + Index(i)) * (depth_tiles * m) + Index(d * m + t * kP)),
                              phase_.at(b, b_array, deep, row(n),
                                        (g + Index(i)) * (depth_tiles * n) + Index(d * n)),
                              d > 0);
              }
            }
            phase_.copy(
                engine,
                phase_.at(out, c_.dtype, rows, row(together * n), g * n + Index(t * count * n)),
                phase_.at(bank, DType::kFp32, rows, row(together * n)));
          });
      transfers(
          count, c_.depth_stride == 1 && c_.row_stride == n, rows, n * isa::size_bytes(c_.dtype),
          [&](const Index& g, std::int64_t together) {
            phase_.store(
                Phase::hbm(c_.buffer, c_.dtype, rows, c_.row_stride,
                           runs(c_.batch_stride, together, c_.depth_stride, n),
                           place(c_, first) + g * c_.batch_stride + Index(t * kP * c_.row_stride)),
                phase_.at(out, c_.dtype, rows, row(together * n), g * n + Index(t * count * n)));
          });
    }
  }

  const Gemm& gemm_;
  Phase phase_;
  const sim::DmaConfig& dma_;
  bool transposed_v3_;
  std::int64_t k_ = 0, batch_ = 1, together_ = 1;
  std::vector<std::int64_t> outer_;
  BatchedSide a_, b_, c_;
  Index outer_index_;
};

}  // namespace

bool lower_batched_gemm(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm) {
  const std::size_t r = gemm.c.rank();
  if (r < 3 || gemm.addend || gemm.alpha != 1 || gemm.plan) return false;
  if (std::max({gemm.c.sizes[r - 2], gemm.c.sizes[r - 1], gemm.a.sizes[r - 1]}) > kLargest)
    return false;
  if (isa::is_fp8(gemm.a.dtype) || isa::is_fp8(gemm.b.dtype)) return false;
  BatchedGemm lowering(builder, kernel, gemm);
  if (!lowering.fits()) return false;
  builder.append(lowering.run());
  return true;
}

}  // namespace trellis::device
