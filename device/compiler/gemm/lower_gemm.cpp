#include "device/compiler/gemm/lower_gemm.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/integer_math.h"
#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/gemm/gemm_batched.h"
#include "device/compiler/gemm/gemm_operands.h"
#include "device/compiler/gemm/gemm_plan.h"
#include "device/compiler/gemm/gemm_shape.h"
#include "device/compiler/gemm/gemm_slices.h"
#include "device/compiler/gemm/gemm_transpose.h"
#include "sim/isa/features.h"

namespace trellis::device {
namespace {

using isa::AluOp;
using isa::DType;
using isa::Engine;

class GemmLowering {
 public:
  GemmLowering(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm)
      : gemm_(gemm), phase_(kernel), core_version_(builder.core().limits.core_version) {
    const std::size_t r = gemm.c.rank();
    m_ = gemm.c.sizes[r - 2];
    n_ = gemm.c.sizes[r - 1];
    k_ = gemm.a.sizes[r - 1];
    collect_batch(r - 2);
    a_ = side(gemm.a, r - 2, r - 1, 1);
    b_ = side(gemm.b, r - 1, r - 2, 2);
    tiles_per_pass_ = k_tiles_per_pass(gemm, core_version_);
    const GemmShape shape = gemm_shape(gemm, builder.core());
    plan_ = gemm.plan ? *gemm.plan : choose_gemm_plan(shape, builder.core(), builder.sbuf_bytes());
    in_pieces_ = starts_in_pieces(shape, plan_);
  }

  Phase run() {
    if (batch_sizes_.size() <= 1) {
      phase_.loop(batch_sizes_.empty() ? 1 : batch_sizes_[0], [&](Index i) { multiply({i, 0}); });
    } else {
      phase_.loop(batch_sizes_[0], [&](Index i) {
        phase_.loop(batch_sizes_[1], [&](Index j) { multiply({i, j}); });
      });
    }
    return std::move(phase_);
  }

 private:
  using Batch = std::array<Index, 2>;

  void collect_batch(std::size_t dims) {
    const auto head = [dims](const HbmView& v) {
      return std::vector<std::int64_t>(v.strides.begin(),
                                       v.strides.begin() + static_cast<std::ptrdiff_t>(dims));
    };
    batch_sizes_.assign(gemm_.c.sizes.begin(),
                        gemm_.c.sizes.begin() + static_cast<std::ptrdiff_t>(dims));
    batch_strides_ = {head(gemm_.c), head(gemm_.a), head(gemm_.b)};
    if (gemm_.addend) batch_strides_.push_back(head(*gemm_.addend));
    if (batch_sizes_.empty()) {
      batch_strides_.assign(4, {});
      return;
    }
    collapse(batch_sizes_, batch_strides_);
    TRELLIS_CHECK(batch_sizes_.size() <= 2,
                  "a batched matrix product with more than two independent batch dimensions");
  }

  Index batch_offset(std::size_t view) const {
    Index out;
    for (std::size_t d = 0; d < batch_sizes_.size(); ++d)
      out = out + batch_[d] * batch_strides_[view][d];
    return out;
  }

  static Side side(const HbmView& v, std::size_t rows, std::size_t depth, std::size_t view) {
    return {v.buffer,
            v.dtype,
            v.offset,
            v.strides[rows],
            v.strides[depth],
            v.sizes[rows],
            view,
            k_is_contiguous(v, rows, depth),
            {}};
  }

  // ── blocks and panels ──

  [[nodiscard]] Side& staying() { return plan_.rows_stay ? a_ : b_; }
  [[nodiscard]] Side& streaming() { return plan_.rows_stay ? b_ : a_; }

  void multiply(const Batch& batch) {
    batch_ = batch;
    for (Side* s : {&a_, &b_}) {
      if (!s->transposed) continue;
      const bool whole = s == &staying() && plan_.copies == 2;
      const int size = isa::size_bytes(s->dtype);
      const std::int64_t chunk = gemm_chunk(k_, size),
                         slots = whole ? ceil_div(plan_.block, kP) * ceil_div(k_, chunk)
                                       : kGemmStagingSlots;
      s->staging = phase_.reserve(slots * chunk * size);
    }
    const bool turns = a_.transposed || b_.transposed;
    transpose_banks_ = phase_.reserve_psum(turns ? kTransposeBanks : 0);
    banks_ = turns ? kBanks - kTransposeBanks : kBanks;
    const std::int64_t copies = staying().transposed ? 1 : plan_.copies;
    for (std::int64_t i = 0; i < copies; ++i) blocks_[i] = hold(staying(), plan_.block);
    for (Held& panel : panels_) panel = hold(streaming(), plan_.panel);
    const std::int64_t full = staying().rows / plan_.block, rest = staying().rows % plan_.block;
    phase_.loop(full / copies, [&](const Index& i) {
      for (std::int64_t c = 0; c < copies; ++c)
        phase_.scope(
            [&] { block(blocks_[c], (i * copies + Index(c)) * plan_.block, plan_.block); });
    });
    const std::int64_t done = full / copies * copies;
    for (std::int64_t i = done; i < full; ++i)
      phase_.scope([&] { block(blocks_[i - done], i * plan_.block, plan_.block); });
    if (rest > 0) phase_.scope([&] { block(blocks_[full % copies], full * plan_.block, rest); });
  }

  /// Room for `width` rows of a side.
  Held hold(const Side& side, std::int64_t width) {
    const std::int64_t size = isa::size_bytes(side.dtype), tiles = ceil_div(k_, kP);
    const bool grouped = side.transposed && &side == &staying();
    const std::int64_t group = grouped ? gemm_group(plan_) : width,
                       bytes = tiles * ceil_div(width, group) * group * size;
    const Phase::Region region = phase_.reserve(bytes);
    Held held{phase_.sbuf_in(region, bytes, 1), {}, group};
    if (side.transposed) phase_.scatter(held.tile);
    const auto part = [&](std::int64_t from, std::int64_t to) {
      held.parts.push_back(phase_.sbuf_in({region.address + from * size, (to - from) * size},
                                          (to - from) * size, 1));
    };
    if (grouped) {
      held.group = group;
      held.row_step = tiles;
      for (std::int64_t row = 0; row < width; row += group) {
        part(row * tiles, (row + group) * tiles);
        phase_.scatter(held.parts.back());
      }
      return held;
    }
    if (!in_pieces_ || side.transposed || width * size % 64 != 0) return held;
    for (std::int64_t p = 0; p < kHeadPieces; ++p)
      part(piece_begin(p) * width, piece_begin(p + 1) * width);
    return held;
  }

  [[nodiscard]] DType transposed_dtype(DType dtype) const {
    return core_version_ >= 3 && isa::size_bytes(dtype) == 2 ? dtype : DType::kFp32;
  }
  [[nodiscard]] std::int64_t piece_begin(std::int64_t piece) const {
    return k_ / kP / tiles_per_pass_ * piece / kHeadPieces * tiles_per_pass_;
  }
  void block(const Held& stay, const Index& first, std::int64_t rows) {
    const Side& stream = streaming();
    const std::int64_t full = stream.rows / plan_.panel, rest = stream.rows % plan_.panel,
                       panels = full + (rest > 0 ? 1 : 0);
    const auto size_of = [&](std::int64_t t) { return t < full ? plan_.panel : rest; };
    const auto bring = [&](const Index& t, std::int64_t size, int buffer) {
      load(stream, t * plan_.panel, size, panels_[buffer]);
    };
    const auto use = [&](const Index& t, std::int64_t size, int buffer) {
      phase_.scope(
          [&] { panel(stay, first, rows, panels_[buffer], t * plan_.panel, size, false); });
    };
    const Ref bias = plan_.rows_stay ? Ref{} : load_bias(first, rows);
    bias_ = bias;
    std::int64_t t = 0;
    if (stay.group > 0) {
      bring(0, size_of(0), 0);
      first_panel_by_groups(stay, first, rows, size_of(0));
      if (panels > 1) bring(1, size_of(1), 1);
      t = 1;
    } else if (!stay.parts.empty()) {
      load_head(stay, first, rows, size_of(0));
      if (panels > 1) bring(1, size_of(1), 1);
      phase_.scope([&] { panel(stay, first, rows, panels_[0], 0, size_of(0), true); });
      t = 1;
    } else {
      bring(0, size_of(0), 0);
      load(staying(), first, rows, stay);
    }
    // While a panel is multiplied, the next one comes into the other buffer.
    const int even = static_cast<int>(t % 2);
    const std::int64_t pairs = full > t ? (full - 1 - t) / 2 : 0;
    const Index start(t);
    phase_.loop(pairs, [&](const Index& i) {
      bring(i * 2 + start + Index(1), plan_.panel, 1 - even);
      use(i * 2 + start, plan_.panel, even);
      bring(i * 2 + start + Index(2), plan_.panel, even);
      use(i * 2 + start + Index(1), plan_.panel, 1 - even);
    });
    for (t += 2 * pairs; t < panels; ++t) {
      if (t + 1 < panels) bring(t + 1, size_of(t + 1), static_cast<int>((t + 1) % 2));
      use(t, size_of(t), static_cast<int>(t % 2));
    }
  }

  /// Both sides of the first panel, piece by piece; one that is transposed comes first, as a whole:
  /// pieces of its rows would be short.
  void load_head(const Held& stay, const Index& first, std::int64_t rows, std::int64_t panel) {
    const bool whole = panels_[0].parts.empty();
    if (whole) load(streaming(), 0, panel, panels_[0]);
    for (std::int64_t p = 0; p < kHeadPieces; ++p) {
      if (!whole) load_piece(streaming(), 0, panel, panels_[0], p);
      load_piece(staying(), first, rows, stay, p);
    }
  }

  /// The first panel meets a block that is transposed group by group: the next one is transposed
  /// while this one is multiplied.
  void first_panel_by_groups(const Held& stay, const Index& first, std::int64_t rows,
                             std::int64_t size) {
    const std::int64_t count = ceil_div(rows, stay.group);
    const auto rows_in = [&](std::int64_t g) {
      return std::min(stay.group, rows - g * stay.group);
    };
    const auto group = [&](std::int64_t g) {
      return Held{stay.parts[static_cast<std::size_t>(g)], {}, stay.k_step, 1, 0, stay.group};
    };
    int loads = 0;
    const auto bring = [&](std::int64_t g) {
      for (std::int64_t row = 0; row < rows_in(g); row += kP)
        load_rows(first + Index(g * stay.group), row, std::min(kP, rows_in(g) - row), group(g),
                  loads++);
    };
    const Ref bias = bias_;
    const auto use = [&](std::int64_t g) {
      if (g + 1 < count) bring(g + 1);
      const Index offset(g * stay.group);
      if (!plan_.rows_stay) bias_.index = bias.index + offset;
      panel(group(g), first + offset, rows_in(g), panels_[0], 0, size, false);
    };
    bring(0);
    // Neighbouring groups of one tile of rows need different banks.
    const std::int64_t together =
        plan_.rows_stay ? rows_per_turn(ceil_div(size, moving_width(size))) : 1;
    for (std::int64_t g = 0; g < count; g += together) {
      phase_.scope([&] {
        for (std::int64_t i = g; i < std::min(g + together, count); ++i) use(i);
      });
    }
    bias_ = bias;
  }

  /// Rows [row, row + rows) of a group, at most a tile. Each load has its part of the staging
  /// memory, as far as it goes: in code without a loop a ring would wait for the one before.
  void load_rows(const Index& row0, std::int64_t row, std::int64_t rows, const Held& into,
                 int number) {
    const Side& s = staying();
    const std::int64_t line = 64, bytes = ceil_div(k_ * isa::size_bytes(s.dtype), line) * line;
    const std::int64_t parts = std::max<std::int64_t>(1, s.staging.bytes / bytes),
                       each = s.staging.bytes / parts / line * line;
    load_transposed(phase_, {.buffer = s.buffer,
                             .dtype = s.dtype,
                             .offset = Index(s.offset) + batch_offset(s.view) +
                                       (row0 + Index(row)) * s.row_stride,
                             .row_stride = s.row_stride,
                             .rows = rows,
                             .depth = k_,
                             .dst = into.tile,
                             .width = into.k_step,
                             .first = row,
                             .staging = {s.staging.address + number % parts * each, each},
                             .transposed = transposed_dtype(s.dtype),
                             .banks = transpose_banks_});
  }

  // ── loads ──

  void load(const Side& s, const Index& row0, std::int64_t rows, const Held& into) {
    const Index offset = Index(s.offset) + batch_offset(s.view) + row0 * s.row_stride;
    if (s.transposed) {
      load_transposed(phase_,
                      {s.buffer, s.dtype, offset, s.row_stride, rows, k_, into.tile, into.k_step, 0,
                       s.staging, transposed_dtype(s.dtype), transpose_banks_});
      return;
    }
    load_tiles(s, offset, rows, into.tile, into.k_step, 0, k_ / kP);
    const std::int64_t full = k_ / kP, rest = k_ % kP;
    if (rest == 0) return;
    phase_.load(
        phase_.at(into.tile, s.dtype, static_cast<int>(rest), row(rows), full * into.k_step),
        Phase::hbm(s.buffer, s.dtype, static_cast<int>(rest), s.depth_stride,
                   {{s.row_stride, static_cast<std::int32_t>(rows)}},
                   offset + Index(full * kP * s.depth_stride)));
  }

  void load_piece(const Side& s, const Index& row0, std::int64_t rows, const Held& into,
                  std::int64_t piece) {
    const Index offset = Index(s.offset) + batch_offset(s.view) + row0 * s.row_stride;
    load_tiles(s, offset, rows, into.parts[static_cast<std::size_t>(piece)], into.k_step,
               piece_begin(piece), piece_begin(piece + 1));
  }

  /// K tiles [from, to) into a tile of `width` that begins with the first of them.
  void load_tiles(const Side& s, const Index& offset, std::int64_t rows, TileId into,
                  std::int64_t width, std::int64_t from, std::int64_t to) {
    if (from == to) return;
    const auto tiles = static_cast<std::int32_t>(to - from), n = static_cast<std::int32_t>(rows);
    phase_.load(phase_.at(into, s.dtype, kP, {{width, tiles}, {1, n}}),
                Phase::hbm(s.buffer, s.dtype, kP, s.depth_stride,
                           {{s.depth_stride * kP, tiles}, {s.row_stride, n}},
                           offset + Index(from * kP * s.depth_stride)));
  }

  // ── one panel against the block ──

  void panel(const Held& stay, const Index& first, std::int64_t rows, const Held& stream,
             const Index& at, std::int64_t size, bool head) {
    const Held& a = plan_.rows_stay ? stay : stream;
    const Held& b = plan_.rows_stay ? stream : stay;
    const Area area = plan_.rows_stay ? Area{first, rows, at, size} : Area{at, size, first, rows};
    if (plan_.rows_stay) bias_ = load_bias(area.n0, area.columns);
    std::int64_t done = head ? head_rows(a, b, area) : 0;
    const std::int64_t per_turn =
        rows_per_turn(ceil_div(area.columns, moving_columns(b, area.columns)));
    const std::int64_t turns = (area.rows - done) / (kP * per_turn);
    phase_.loop(turns, [&](const Index& i) {
      for (std::int64_t r = 0; r < per_turn; ++r)
        rows_of(a, b, area, (i * per_turn + Index(r)) * kP + Index(done), kP);
    });
    for (done += turns * per_turn * kP; done < area.rows; done += kP)
      rows_of(a, b, area, done, std::min(kP, area.rows - done));
  }

  /// Columns of `columns` that move at a time: a group of b, or equal parts.
  [[nodiscard]] static std::int64_t moving_columns(const Held& b, std::int64_t columns) {
    return b.group > 0 ? b.group : moving_width(columns);
  }

  /// Neighbouring products need different banks: several tiles of rows per turn where one has few
  /// sums `across`.
  [[nodiscard]] std::int64_t rows_per_turn(std::int64_t across) const {
    return std::max<std::int64_t>(1, std::min<std::int64_t>(banks_, 4) / across);
  }

  [[nodiscard]] Held piece_of(const Held& held, std::int64_t piece) const {
    if (held.parts.empty()) return {held.tile, {}, held.k_step, 1, piece_begin(piece)};
    return {held.parts[static_cast<std::size_t>(piece)], {}, held.k_step};
  }

  /// As many rows as PSUM holds sums of, K outermost. Returns how many.
  std::int64_t head_rows(const Held& a, const Held& b, const Area& area) {
    const std::int64_t width = moving_width(area.columns), across = ceil_div(area.columns, width),
                       tall = std::min(banks_ / across, area.rows / kP);
    phase_.scope([&] {
      std::vector<std::vector<Ref>> sums(static_cast<std::size_t>(tall));
      for (auto& line : sums) {
        for (std::int64_t n = 0; n < area.columns; n += width) {
          line.push_back(
              phase_.at(phase_.psum(), DType::kFp32, kP, row(std::min(width, area.columns - n))));
        }
      }
      for (std::int64_t p = 0; p < kHeadPieces; ++p) {
        for (std::int64_t r = 0; r < tall; ++r) {
          for (std::int64_t c = 0; c < across; ++c) {
            const Ref& sum = sums[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
            accumulate(sum, piece_of(a, p), r * kP, kP, piece_of(b, p), c * width,
                       piece_begin(p + 1) - piece_begin(p), p > 0);
          }
        }
      }
      for (std::int64_t r = 0; r < tall; ++r)
        finish_rows(area, r * kP, kP, sums[static_cast<std::size_t>(r)]);
    });
    return tall * kP;
  }

  /// Rows [m1, m1 + rows) of an area.
  void rows_of(const Held& a, const Held& b, const Area& area, const Index& m1, std::int64_t rows) {
    const Results results = make_results(area, m1, rows);
    const std::int64_t most = moving_columns(b, area.columns);
    for (std::int64_t n = 0; n < area.columns; n += most) {
      const std::int64_t width = std::min(most, area.columns - n);
      const Ref sum = phase_.at(phase_.psum(), DType::kFp32, static_cast<int>(rows), row(width));
      const std::int64_t full = k_ / kP, rest = k_ % kP;
      accumulate(sum, a, m1, rows, b, n, full, false);
      if (rest > 0) {
        phase_.matmul(
            sum, phase_.at(a.tile, a_array(), static_cast<int>(rest), row(rows), a.at(full, m1)),
            phase_.at(b.tile, b_array(), static_cast<int>(rest), row(width), b.at(full, n)),
            full > 0);
      }
      evict(sum, results, rows, n, width);
    }
    store(area, m1, rows, results);
  }

  void finish_rows(const Area& area, const Index& m1, std::int64_t rows,
                   const std::vector<Ref>& sums) {
    const Results results = make_results(area, m1, rows);
    const std::int64_t width = moving_width(area.columns);
    std::int64_t n = 0;
    for (const Ref& sum : sums) {
      evict(sum, results, rows, n, std::min(width, area.columns - n));
      n += width;
    }
    store(area, m1, rows, results);
  }

  [[nodiscard]] DType a_array() const { return array_dtype(a_.dtype, gemm_.four_passes); }
  [[nodiscard]] DType b_array() const { return array_dtype(b_.dtype, gemm_.four_passes); }

  /// sum (+)= `tiles` K tiles of a's rows [m1, m1 + rows) with b's columns from n.
  void accumulate(const Ref& sum, const Held& a, const Index& m1, std::int64_t rows, const Held& b,
                  std::int64_t n, std::int64_t tiles, bool onto) {
    const std::int64_t width = sum.pattern.elements_per_partition(),
                       passes = tiles / tiles_per_pass_;
    const auto operand = [&](const Held& held, DType dtype, std::int64_t columns, const Index& at) {
      if (tiles_per_pass_ == 1) return phase_.at(held.tile, dtype, kP, row(columns), at);
      return phase_.at(held.tile, dtype, kP,
                       {{held.k_step, 2}, {1, static_cast<std::int32_t>(columns)}}, at);
    };
    phase_.loop(passes, [&](const Index& pass) {
      const Index kt = pass * tiles_per_pass_;
      phase_.matmul(sum, operand(a, a_array(), rows, a.at(kt, m1)),
                    operand(b, b_array(), width, b.at(kt, n)), onto || passes > 1,
                    !onto && passes > 1,
                    tiles_per_pass_ == 1 ? isa::MatmulMode::kDense : isa::MatmulMode::kDoubleRow);
    });
  }

  // ── results ──

  /// Rows of an area on their way to HBM, and what is needed for them.
  struct Results {
    TileId out = isa::kNone;
    Ref addend;
    TileId activated = isa::kNone;
    Ref factor;
  };

  Results make_results(const Area& area, const Index& m1, std::int64_t rows) {
    Results r;
    r.out = phase_.sbuf(area.columns * isa::size_bytes(gemm_.c.dtype), 2);
    r.addend = load_addend(area, m1, rows);
    if (gemm_.activated)
      r.activated = phase_.sbuf(area.columns * isa::size_bytes(gemm_.activated->dtype), 2);
    if (gemm_.factor) {
      r.factor = phase_.at(phase_.sbuf(area.columns * isa::size_bytes(gemm_.factor->dtype), 2),
                           gemm_.factor->dtype, static_cast<int>(rows), row(area.columns));
      phase_.load(r.factor, rows_of_area(*gemm_.factor, area, m1, rows, Index(0)));
    }
    return r;
  }

  void store(const Area& area, const Index& m1, std::int64_t rows, const Results& r) {
    const int p = static_cast<int>(rows);
    phase_.store(rows_of_area(gemm_.c, area, m1, rows, batch_offset(0)),
                 phase_.at(r.out, gemm_.c.dtype, p, row(area.columns)));
    if (gemm_.activated)
      phase_.store(rows_of_area(*gemm_.activated, area, m1, rows, Index(0)),
                   phase_.at(r.activated, gemm_.activated->dtype, p, row(area.columns)));
  }

  [[nodiscard]] static Ref rows_of_area(const HbmView& v, const Area& area, const Index& m1,
                                        std::int64_t rows, const Index& batch) {
    const std::int64_t rs = v.strides[v.rank() - 2], cs = v.strides.back();
    return Phase::hbm(v.buffer, v.dtype, static_cast<int>(rows), rs,
                      {{cs, static_cast<std::int32_t>(area.columns)}},
                      Index(v.offset) + batch + (area.m0 + m1) * rs + area.n0 * cs);
  }

  [[nodiscard]] const std::optional<HbmView>& epilogue_operand() const {
    return gemm_.activated ? gemm_.activated : gemm_.factor;
  }

  [[nodiscard]] bool is_bias() const {
    return gemm_.addend && gemm_.addend->strides[gemm_.addend->rank() - 2] == 0;
  }

  /// A row that every row of c gets, broadcast over the partitions.
  Ref load_bias(const Index& n0, std::int64_t columns) {
    if (!is_bias()) return {};
    const HbmView& v = *gemm_.addend;
    const std::int64_t stride = v.strides.back();
    const TileId tile = phase_.sbuf(columns * isa::size_bytes(v.dtype));
    const Ref dst = phase_.at(tile, v.dtype, kP, row(columns));
    phase_.load(dst,
                Phase::hbm(v.buffer, v.dtype, kP, 0, {{stride, static_cast<std::int32_t>(columns)}},
                           Index(v.offset) + batch_offset(3) + n0 * stride));
    return dst;
  }

  Ref load_addend(const Area& area, const Index& m1, std::int64_t rows) {
    if (!gemm_.addend || is_bias()) return {};
    const HbmView& v = *gemm_.addend;
    const Ref dst = phase_.at(phase_.sbuf(area.columns * isa::size_bytes(v.dtype), 2), v.dtype,
                              static_cast<int>(rows), row(area.columns));
    phase_.load(dst, rows_of_area(v, area, m1, rows, batch_offset(3)));
    return dst;
  }

  void evict(const Ref& sum, const Results& r, std::int64_t rows, std::int64_t n,
             std::int64_t width) {
    const int p = static_cast<int>(rows);
    const Ref out = phase_.at(r.out, gemm_.c.dtype, p, row(width), n);
    if (gemm_.factor) {
      const Ref by = phase_.at(phase_.sbuf(width * isa::size_bytes(r.factor.pattern.dtype), 2),
                               r.factor.pattern.dtype, p, row(width));
      phase_.activation(gemm_.activation, by,
                        phase_.at(r.factor.tile, r.factor.pattern.dtype, p, row(width), Index(n)));
      if (!gemm_.addend) return phase_.tensor_tensor(AluOp::kMultiply, out, sum, by);
      make_sum(sum, out, r.addend, rows, n, width);
      return phase_.tensor_tensor(AluOp::kMultiply, out, out, by);
    }
    make_sum(sum, out, r.addend, rows, n, width);
    if (gemm_.activated)
      phase_.activation(gemm_.activation,
                        phase_.at(r.activated, gemm_.activated->dtype, p, row(width), n), out);
  }

  void make_sum(const Ref& sum, const Ref& out, const Ref& addend, std::int64_t rows,
                std::int64_t n, std::int64_t width) {
    const Ref& whole = is_bias() ? bias_ : addend;
    if (!gemm_.addend) {
      if (gemm_.alpha != 1)
        return phase_.activation(isa::Activation::kIdentity, out, sum, gemm_.alpha);
      return phase_.copy(flip_++ % 2 == 1 ? Engine::kScalar : Engine::kVector, out, sum);
    }
    Ref other = phase_.at(whole.tile, whole.pattern.dtype, static_cast<int>(rows), row(width),
                          whole.index + Index(n));
    if (gemm_.alpha == 1 && gemm_.beta == 1)
      return phase_.tensor_tensor(AluOp::kAdd, out, sum, other);
    const Ref scaled =
        phase_.at(phase_.sbuf(width * 4), DType::kFp32, static_cast<int>(rows), row(width));
    phase_.activation(isa::Activation::kIdentity, scaled, other, gemm_.beta);
    const Ref product =
        phase_.at(phase_.sbuf(width * 4), DType::kFp32, static_cast<int>(rows), row(width));
    phase_.tensor_scalar(product, sum, AluOp::kMultiply, gemm_.alpha);
    phase_.tensor_tensor(AluOp::kAdd, out, product, scaled);
  }

  const Gemm& gemm_;
  Phase phase_;
  int core_version_ = 2;
  std::int64_t m_ = 0, n_ = 0, k_ = 0;
  std::vector<std::int64_t> batch_sizes_;
  std::vector<std::vector<std::int64_t>> batch_strides_;  ///< of c, a, b, addend
  Batch batch_;
  Side a_, b_;
  GemmPlan plan_;
  bool in_pieces_ = false;  ///< starts_in_pieces
  std::array<Held, 2> blocks_, panels_;
  Phase::Region transpose_banks_;  ///< banks for transposes
  std::int64_t banks_ = 0;         ///< left for sums
  std::int64_t tiles_per_pass_ = 1;
  Ref bias_;
  int flip_ = 0;
};

}  // namespace

void lower_gemm(ProgramBuilder& builder, std::uint32_t kernel, Gemm gemm) {
  const std::size_t r = gemm.c.rank();
  if (gemm.c.strides[r - 1] != 1 && gemm.c.strides[r - 2] == 1) {  // cᵀ = bᵀ aᵀ stores rows
    const HbmView a = gemm.a;
    gemm.a = transposed(gemm.b, r - 2, r - 1);
    gemm.b = transposed(a, r - 2, r - 1);
    gemm.c = transposed(gemm.c, r - 2, r - 1);
    if (gemm.addend) gemm.addend = transposed(*gemm.addend, r - 2, r - 1);
  }
  const bool epilogue = gemm.activated || gemm.factor;
  if (!epilogue && builder.core().compiler.batched_products &&
      lower_batched_gemm(builder, kernel, gemm))
    return;
  const std::vector<Gemm> slices = gemm.plan ? std::vector{gemm} : best_slices(builder, gemm);
  for (const Gemm& part : slices) builder.append(GemmLowering(builder, kernel, part).run());
}

}  // namespace trellis::device
