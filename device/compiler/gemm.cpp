#include "device/compiler/gemm.h"

#include <algorithm>

namespace trellis::device {
namespace {

using isa::AluOp;
using isa::DType;
using isa::Engine;

constexpr std::int64_t kP = 128;       // partitions, stationary columns
constexpr std::int64_t kMoving = 512;  // moving columns, one PSUM bank of fp32
constexpr std::int64_t kChunk = 1024;  // elements of K that one load of a transposed operand takes: 2 KiB descriptors in bf16
constexpr int kStagingSlots = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// fp32 products take one pass: the array reads fp32 operands as tf32, as Neuron's auto-cast does by default.
DType array_dtype(DType dtype) { return dtype == DType::kFp32 ? DType::kTf32 : dtype; }

/// One operand as [rows, depth]: rows are M or N, depth is K.
struct Side {
  std::uint32_t buffer = 0;
  DType dtype = DType::kBf16;
  std::int64_t offset = 0;
  std::int64_t row_stride = 0, depth_stride = 0;
  std::vector<std::int64_t> batch;  ///< strides
  /// K is the contiguous dimension: it must be brought to the partitions by a transpose.
  [[nodiscard]] bool transposed(std::int64_t rows) const { return depth_stride == 1 && (row_stride != 1 || rows == 1); }
};

class GemmLowering {
 public:
  GemmLowering(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm) : builder_(builder), gemm_(gemm), phase_(kernel) {
    const std::size_t r = gemm.c.rank();
    m_ = gemm.c.sizes[r - 2];
    n_ = gemm.c.sizes[r - 1];
    k_ = gemm.a.sizes[r - 1];
    collect_batch(r - 2);
    a_ = side(gemm.a, r - 2, r - 1, 1);
    b_ = side(gemm.b, r - 1, r - 2, 2);
    choose_blocks();
  }

  Phase run() {
    if (batch_sizes_.size() <= 1) {
      phase_.loop(batch_sizes_.empty() ? 1 : batch_sizes_[0], [&](Index i) { block_columns({i, 0}); });
    } else {
      phase_.loop(batch_sizes_[0], [&](Index i) { phase_.loop(batch_sizes_[1], [&](Index j) { block_columns({i, j}); }); });
    }
    return std::move(phase_);
  }

 private:
  using Batch = std::array<Index, 2>;

  void collect_batch(std::size_t dims) {
    const auto head = [dims](const HbmView& v) { return std::vector<std::int64_t>(v.strides.begin(), v.strides.begin() + static_cast<std::ptrdiff_t>(dims)); };
    batch_sizes_.assign(gemm_.c.sizes.begin(), gemm_.c.sizes.begin() + static_cast<std::ptrdiff_t>(dims));
    batch_strides_ = {head(gemm_.c), head(gemm_.a), head(gemm_.b)};
    if (gemm_.addend) batch_strides_.push_back(head(*gemm_.addend));
    if (batch_sizes_.empty()) {
      batch_strides_.assign(4, {});
      return;
    }
    collapse(batch_sizes_, batch_strides_);
    TRELLIS_CHECK(batch_sizes_.size() <= 2, "a batched matrix product with more than two independent batch dimensions");
  }

  Index batch_offset(const Batch& batch, std::size_t view) const {
    Index out;
    for (std::size_t d = 0; d < batch_sizes_.size(); ++d) out = out + batch[d] * batch_strides_[view][d];
    return out;
  }

  static Side side(const HbmView& v, std::size_t rows, std::size_t depth, std::size_t) {
    return {v.buffer, v.dtype, v.offset, v.strides[rows], v.strides[depth], {}};
  }

  std::int64_t column_bytes() const { return ceil_div(k_, kP) * isa::size_bytes(a_.dtype); }
  std::int64_t staging_bytes() const { return a_.transposed(m_) ? kStagingSlots * std::min(k_, kChunk) * isa::size_bytes(a_.dtype) : 0; }

  /// SBUF for the moving block, the ring of rows that meets it, staging and results.
  std::int64_t bytes_needed(std::int64_t block_n, std::int64_t panel_m) const {
    const std::int64_t raw = b_.transposed(n_) ? 3 * kChunk * isa::size_bytes(b_.dtype) : 0;
    const std::int64_t rows = block_n * (2 * isa::size_bytes(gemm_.c.dtype) + (gemm_.addend ? 16 : 0));
    const std::int64_t ring = 2 * (a_.transposed(m_) ? kP : panel_m);
    return column_bytes() * (block_n + ring) + staging_bytes() + std::max(raw, rows) + 4096;
  }

  /// Columns per block, rows per panel, and whether the first panel is peeled: wide blocks first (fewer passes over a), then peeled
  /// ones (their load is hidden).
  struct Blocks {
    std::int64_t n, m;
    bool peel;
  };

  void choose_blocks() {
    static constexpr std::array<Blocks, 14> kChoices{{{2048, 512, true}, {2048, 256, true}, {2048, 512, false}, {1024, 512, true}, {1024, 256, true},
        {1024, 512, false}, {1024, 256, false}, {1024, 128, false}, {512, 512, false}, {512, 256, false}, {512, 128, false}, {256, 128, false},
        {128, 128, false}, {64, 64, false}}};
    for (const Blocks& choice : kChoices) {
      block_n_ = std::min(choice.n, ceil_div(n_, 64) * 64);
      panel_m_ = std::min(choice.m, ceil_div(m_, kP) * kP);
      peel_ = choice.peel && m_ > panel_m_ && block_n_ > kMoving;
      if (bytes_needed(block_n_, panel_m_) + (peel_ ? column_bytes() * panel_m_ : 0) <= builder_.sbuf_bytes()) return;
    }
  }

  void block_columns(const Batch& batch) {
    phase_.tiles(n_, block_n_, [&](const Index& n0, std::int64_t columns) {
      // Everything that lives as long as the block gets its memory first: what is freed inside must not be in the way of a load ahead.
      staging_ = phase_.reserve(staging_bytes());
      turning_ = phase_.reserve_psum(a_.transposed(m_) || b_.transposed(n_) ? 4 : 0);
      std::vector<TileId> b;
      for (std::int64_t n = 0; n < columns; n += kMoving) b.push_back(phase_.sbuf(column_bytes() * std::min(kMoving, columns - n)));
      const auto load_b = [&](std::size_t i) {
        const std::int64_t n = static_cast<std::int64_t>(i) * kMoving;
        load_side(b_, n_, n0 + Index(n), std::min(kMoving, columns - n), batch, 2, b[i], nullptr);
      };
      const Ref bias = load_bias(batch, n0, columns);
      const Phase::Region ring = phase_.reserve(a_.transposed(m_) ? 0 : 2 * column_bytes() * panel_m_);
      for (TileId& t : turned_) t = a_.transposed(m_) ? phase_.sbuf(column_bytes() * kP) : 0;
      if (peel_) {
        first_panel(batch, n0, columns, bias, b, load_b);
      } else {
        for (std::size_t i = 0; i < b.size(); ++i) load_b(i);
      }
      banks_ = b.size() > 2 ? 1 : 2;
      const std::int64_t done = peel_ ? panel_m_ : 0;
      if (a_.transposed(m_)) return turned_rows(batch, done, b, columns, n0, bias);
      const auto panel = [&](const Index& m, std::int64_t rows) {
        const Index m0 = m + Index(done);
        const TileId a = phase_.sbuf_in(ring, column_bytes() * rows, 2);
        load_side(a_, m_, m0, rows, batch, 1, a, &staging_);
        multiply_panel(batch, a, rows, b, columns, m0, n0, bias);
      };
      if (batch_sizes_.size() > 1) {
        phase_.tiles(m_ - done, panel_m_, panel);
      } else {
        phase_.double_buffered_tiles(m_ - done, panel_m_, panel);
      }
    });
  }

  /// Rows that need a transpose: while 128 of them are multiplied, the next 128 are turned into the other buffer.
  void turned_rows(const Batch& batch, std::int64_t first, const std::vector<TileId>& b, std::int64_t columns, const Index& n0, const Ref& bias) {
    const std::int64_t full = (m_ - first) / kP, rest = (m_ - first) % kP;
    const auto turn = [&](const Index& tile, std::int64_t rows, int buffer) {
      load_side(a_, m_, tile * kP + Index(first), rows, batch, 1, turned_[buffer], &staging_);
    };
    const auto multiply = [&](const Index& tile, std::int64_t rows, int buffer) {
      multiply_rows(batch, turned_[buffer], rows, 0, rows, b, columns, tile * kP + Index(first), n0, bias, 1);
    };
    if (full > 0) turn(0, kP, 0);
    const std::int64_t pairs = full > 0 ? (full - 1) / 2 : 0;
    phase_.loop(pairs, [&](const Index& i) {
      turn(i * 2 + Index(1), kP, 1);
      phase_.scope([&] { multiply(i * 2, kP, 0); });
      turn(i * 2 + Index(2), kP, 0);
      phase_.scope([&] { multiply(i * 2 + Index(1), kP, 1); });
    });
    int buffer = 0;
    for (std::int64_t t = pairs * 2; t < full || (t == full && rest > 0); ++t, buffer ^= 1) {
      const std::int64_t rows = t < full ? kP : rest;
      if (t == 0 && full == 0) turn(0, rows, 0);
      if (t + 1 < full) turn(t + 1, kP, buffer ^ 1);
      if (t + 1 == full && rest > 0) turn(t + 1, rest, buffer ^ 1);
      phase_.scope([&] { multiply(t, rows, buffer); });
    }
  }

  /// The first rows meet the columns of b as they arrive, so that the array does not wait for the whole block.
  template <typename LoadB>
  void first_panel(const Batch& batch, const Index& n0, std::int64_t columns, const Ref& bias, const std::vector<TileId>& b, LoadB load_b) {
    banks_ = 2;
    const TileId a = phase_.sbuf(column_bytes() * panel_m_);
    load_side(a_, m_, 0, panel_m_, batch, 1, a, &staging_);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::int64_t n = static_cast<std::int64_t>(i) * kMoving;
      load_b(i);
      Ref part = bias;
      if (is_bias()) part.index = part.index + Index(n);
      multiply_panel(batch, a, panel_m_, {b[i]}, std::min(kMoving, columns - n), 0, n0 + Index(n), part);
    }
  }

  /// [k on 128 partitions, k tile, rows] of one operand.
  void load_side(const Side& s, std::int64_t all_rows, const Index& row0, std::int64_t rows, const Batch& batch, std::size_t view, TileId tile,
                 const Phase::Region* staging) {
    const Index offset = Index(s.offset) + batch_offset(batch, view) + row0 * s.row_stride;
    if (s.transposed(all_rows)) {
      load_transposed(phase_, {s.buffer, s.dtype, offset, s.row_stride, s.depth_stride, rows, k_, tile, rows, 0, staging, &turning_});
      return;
    }
    const std::int64_t full = k_ / kP, rest = k_ % kP;
    const isa::Dim row_dim{s.row_stride, static_cast<std::int32_t>(rows)};
    if (full > 0) {
      const Dims on_chip{{rows, static_cast<std::int32_t>(full)}, {1, static_cast<std::int32_t>(rows)}};
      phase_.load(phase_.at(tile, s.dtype, kP, on_chip), Phase::hbm(s.buffer, s.dtype, kP, s.depth_stride, {{s.depth_stride * kP, static_cast<std::int32_t>(full)}, row_dim}, offset));
    }
    if (rest > 0) {
      phase_.load(phase_.at(tile, s.dtype, static_cast<int>(rest), row(rows), full * rows),
                  Phase::hbm(s.buffer, s.dtype, static_cast<int>(rest), s.depth_stride, {row_dim}, offset + Index(full * kP * s.depth_stride)));
    }
  }

  [[nodiscard]] bool is_bias() const { return gemm_.addend && gemm_.addend->strides[gemm_.addend->rank() - 2] == 0; }

  /// A row that every row of c gets: loaded once per block of columns, broadcast over the partitions.
  Ref load_bias(const Batch& batch, const Index& n0, std::int64_t columns) {
    if (!is_bias()) return {};
    const HbmView& v = *gemm_.addend;
    const std::int64_t stride = v.strides.back();
    const TileId tile = phase_.sbuf(columns * isa::size_bytes(v.dtype));
    const Ref dst = phase_.at(tile, v.dtype, kP, row(columns));
    phase_.load(dst, Phase::hbm(v.buffer, v.dtype, kP, 0, {{stride, static_cast<std::int32_t>(columns)}}, Index(v.offset) + batch_offset(batch, 3) + n0 * stride));
    return dst;
  }

  /// Rows [m1, m1 + rows) of a panel of `panel` rows, whose first one is row m0 of c.
  void multiply_rows(const Batch& batch, TileId a, std::int64_t panel, const Index& m1, std::int64_t rows, const std::vector<TileId>& b, std::int64_t columns,
                     const Index& m0, const Index& n0, const Ref& bias, int results) {
    const TileId out = phase_.sbuf(columns * isa::size_bytes(gemm_.c.dtype), results);
    const Ref addend = load_addend(batch, m0 + m1, n0, rows, columns);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::int64_t n = static_cast<std::int64_t>(i) * kMoving;
      const std::int64_t width = std::min(kMoving, columns - n);
      const Ref sum = multiply_tile(a, panel, m1, rows, b[i], width);
      evict(sum, phase_.at(out, gemm_.c.dtype, static_cast<int>(rows), row(width), n), bias, addend, rows, n, width, (flip_++ % 2) == 1);
    }
    const auto& c = gemm_.c;
    const std::int64_t rs = c.strides[c.rank() - 2], cs = c.strides.back();
    phase_.store(Phase::hbm(c.buffer, c.dtype, static_cast<int>(rows), rs, {{cs, static_cast<std::int32_t>(columns)}},
                            Index(c.offset) + batch_offset(batch, 0) + (m0 + m1) * rs + n0 * cs),
                 phase_.at(out, c.dtype, static_cast<int>(rows), row(columns)));
  }

  void multiply_panel(const Batch& batch, TileId a, std::int64_t panel, const std::vector<TileId>& b, std::int64_t columns, const Index& m0,
                      const Index& n0, const Ref& bias) {
    const auto rows_of = [&](const Index& m1, std::int64_t rows) { multiply_rows(batch, a, panel, m1, rows, b, columns, m0, n0, bias, 2); };
    if (b.size() > 1 || panel < 2 * kP) return phase_.tiles(panel, kP, rows_of);
    // One PSUM tile per row of tiles: two rows per turn keep the Tensor engine busy while one is evicted.
    phase_.loop(panel / (2 * kP), [&](Index i) {
      rows_of(i * (2 * kP), kP);
      rows_of(i * (2 * kP) + Index(kP), kP);
    });
    const std::int64_t done = panel / (2 * kP) * (2 * kP);
    for (std::int64_t m = done; m < panel; m += kP) rows_of(Index(m), std::min(kP, panel - m));
  }

  Ref multiply_tile(TileId a, std::int64_t panel, const Index& m1, std::int64_t rows, TileId b, std::int64_t width) {
    const Ref sum = phase_.at(phase_.psum(banks_), DType::kFp32, static_cast<int>(rows), row(width));
    const DType da = array_dtype(a_.dtype), db = array_dtype(b_.dtype);
    const std::int64_t full = k_ / kP, rest = k_ % kP;
    phase_.loop(full, [&](Index kt) {
      phase_.matmul(sum, phase_.at(a, da, kP, row(rows), kt * panel + m1), phase_.at(b, db, kP, row(width), kt * width), full > 1, full > 1);
    });
    if (rest > 0) {
      phase_.matmul(sum, phase_.at(a, da, static_cast<int>(rest), row(rows), Index(full * panel) + m1),
                    phase_.at(b, db, static_cast<int>(rest), row(width), full * width), full > 0);
    }
    return sum;
  }

  Ref load_addend(const Batch& batch, const Index& m, const Index& n0, std::int64_t rows, std::int64_t columns) {
    if (!gemm_.addend || is_bias()) return {};
    const HbmView& v = *gemm_.addend;
    const std::int64_t rs = v.strides[v.rank() - 2], cs = v.strides.back();
    const Ref dst = phase_.at(phase_.sbuf(columns * isa::size_bytes(v.dtype), 2), v.dtype, static_cast<int>(rows), row(columns));
    phase_.load(dst, Phase::hbm(v.buffer, v.dtype, static_cast<int>(rows), rs, {{cs, static_cast<std::int32_t>(columns)}},
                                Index(v.offset) + batch_offset(batch, 3) + m * rs + n0 * cs));
    return dst;
  }

  void evict(const Ref& sum, const Ref& out, const Ref& bias, const Ref& addend, std::int64_t rows, std::int64_t n, std::int64_t width, bool on_scalar) {
    const Ref& whole = is_bias() ? bias : addend;
    if (!gemm_.addend) {
      if (gemm_.alpha != 1) return phase_.activation(isa::Activation::kIdentity, out, sum, gemm_.alpha);
      return phase_.copy(on_scalar ? Engine::kScalar : Engine::kVector, out, sum);
    }
    Ref other = phase_.at(whole.tile, whole.pattern.dtype, static_cast<int>(rows), row(width), whole.index + Index(n));
    if (gemm_.alpha == 1 && gemm_.beta == 1) return phase_.tensor_tensor(AluOp::kAdd, out, sum, other);
    const Ref scaled = phase_.at(phase_.sbuf(width * 4), DType::kFp32, static_cast<int>(rows), row(width));
    phase_.activation(isa::Activation::kIdentity, scaled, other, gemm_.beta);
    const Ref product = phase_.at(phase_.sbuf(width * 4), DType::kFp32, static_cast<int>(rows), row(width));
    phase_.tensor_scalar(product, sum, AluOp::kMultiply, gemm_.alpha);
    phase_.tensor_tensor(AluOp::kAdd, out, product, scaled);
  }

  ProgramBuilder& builder_;
  const Gemm& gemm_;
  Phase phase_;
  std::int64_t m_ = 0, n_ = 0, k_ = 0;
  std::int64_t block_n_ = 0, panel_m_ = 0;
  std::vector<std::int64_t> batch_sizes_;
  std::vector<std::vector<std::int64_t>> batch_strides_;  ///< of c, a, b, addend
  Side a_, b_;
  int flip_ = 0;
  bool peel_ = false;
  std::array<TileId, 2> turned_{};
  Phase::Region staging_, turning_;
  int banks_ = 2;  ///< PSUM slots per tile of columns
};

}  // namespace

void load_transposed(Phase& phase, const TransposedLoad& w) {
  const std::int64_t size = isa::size_bytes(w.dtype);
  const auto chunk = [&](const Index& r0, std::int64_t rows, const Index& k0, const Index& kt0, std::int64_t depth) {
    const TileId raw = w.staging != nullptr ? phase.sbuf_in(*w.staging, depth * size, kStagingSlots) : phase.sbuf(depth * size, 3);
    phase.load(phase.at(raw, w.dtype, static_cast<int>(rows), row(depth)),
               Phase::hbm(w.buffer, w.dtype, static_cast<int>(rows), w.row_stride, {{w.depth_stride, static_cast<std::int32_t>(depth)}},
                          w.offset + r0 * w.row_stride + k0 * w.depth_stride));
    for (std::int64_t k = 0; k < depth;) {
      const std::int64_t tiles = std::min<std::int64_t>(4, (depth - k) / kP);
      const std::int64_t partitions = tiles > 0 ? kP : depth - k;
      const TileId bank = w.banks != nullptr ? phase.psum_in(*w.banks, k / 512 % 2 == 0 ? 0 : 2, 2) : phase.psum(2);
      for (std::int64_t t = 0; t < std::max<std::int64_t>(tiles, 1); ++t) {
        phase.transpose(phase.at(bank, isa::DType::kFp32, static_cast<int>(partitions), row(rows), t * kP),
                        phase.at(raw, w.dtype, static_cast<int>(rows), row(partitions), k + t * kP));
      }
      const std::int32_t n = static_cast<std::int32_t>(std::max<std::int64_t>(tiles, 1));
      const isa::Dim columns{1, static_cast<std::int32_t>(rows)};
      phase.copy(k / 512 % 2 == 0 ? Engine::kVector : Engine::kScalar,
                 phase.at(w.dst, w.dtype, static_cast<int>(partitions), {{w.width, n}, columns}, (kt0 + Index(k / kP)) * w.width + r0 + Index(w.column)),
                 phase.at(bank, isa::DType::kFp32, static_cast<int>(partitions), {{kP, n}, columns}));
      k += tiles > 0 ? tiles * kP : partitions;
    }
  };
  phase.tiles(w.rows, kP, [&](const Index& r0, std::int64_t rows) {
    phase.loop(w.depth / kChunk, [&](Index i) { chunk(r0, rows, i * kChunk, i * (kChunk / kP), kChunk); });
    const std::int64_t done = w.depth / kChunk * kChunk;
    if (done < w.depth) chunk(r0, rows, done, done / kP, w.depth - done);
  });
}

void lower_gemm(ProgramBuilder& builder, std::uint32_t kernel, Gemm gemm) {
  const std::size_t r = gemm.c.rank();
  if (gemm.c.strides[r - 1] != 1 && gemm.c.strides[r - 2] == 1) {  // cᵀ = bᵀ aᵀ stores rows
    const HbmView a = gemm.a;
    gemm.a = transposed(gemm.b, r - 2, r - 1);
    gemm.b = transposed(a, r - 2, r - 1);
    gemm.c = transposed(gemm.c, r - 2, r - 1);
    if (gemm.addend) gemm.addend = transposed(*gemm.addend, r - 2, r - 1);
  }
  const std::int64_t k = gemm.a.sizes[r - 1];
  const std::int64_t most = 64 * kP * 2 / isa::size_bytes(gemm.a.dtype);  // what leaves room for wide blocks in SBUF
  const std::int64_t slices = ceil_div(k, most);
  if (slices == 1) return builder.append(GemmLowering(builder, kernel, gemm).run());
  // A long K is cut: the running sum passes through HBM in fp32.
  const std::int64_t step = ceil_div(ceil_div(k, kP), slices) * kP;
  const HbmView sum = contiguous(builder.scratch(gemm.c.elements() * 4), DType::kFp32, gemm.c.sizes);
  for (std::int64_t k0 = 0; k0 < k; k0 += step) {
    Gemm part = gemm;
    part.a.offset += k0 * gemm.a.strides[r - 1];
    part.b.offset += k0 * gemm.b.strides[r - 2];
    part.a.sizes[r - 1] = part.b.sizes[r - 2] = std::min(step, k - k0);
    if (k0 > 0) part.addend = sum, part.beta = 1;
    if (k0 + step < k) part.c = sum;
    builder.append(GemmLowering(builder, kernel, part).run());
  }
}

}  // namespace trellis::device
