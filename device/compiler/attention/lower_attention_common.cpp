#include "device/compiler/attention/lower_attention_common.h"

namespace trellis::device::attention {

using isa::AluOp;
using isa::DType;
using isa::Engine;

std::vector<std::int64_t> tile_sizes(std::int64_t count) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t done = 0; done < count; done += kTile)
    sizes.push_back(std::min(kTile, count - done));
  return sizes;
}

std::int64_t balanced_reach(std::int64_t rows, std::int64_t fitting) {
  // One statistic per tile must fit on the partitions when a row of them is transposed.
  const std::int64_t most = std::min(fitting, kTile / kTilesPerBlock),
                     needed = ceil_div(rows, kBlock);
  return most < 1 ? 0 : ceil_div(needed, ceil_div(needed, most)) * kBlock;
}

DType work_dtype(const std::vector<const HbmView*>& inputs) {
  const DType first = inputs.front()->dtype;
  const bool same = std::all_of(inputs.begin(), inputs.end(),
                                [&](const HbmView* v) { return v->dtype == first; });
  return same && (first == DType::kBf16 || first == DType::kFp16) ? first : DType::kFp32;
}

DType transposed_dtype(DType work, const sim::CoreConfig& core) {
  return core.limits.core_version >= 3 && isa::size_bytes(work) == 2 ? work : DType::kFp32;
}

DType array_dtype(DType dtype) { return dtype == DType::kFp32 ? DType::kTf32 : dtype; }

Heads::Heads(std::vector<HbmView> views, std::int64_t heads, std::int64_t key_heads)
    : views_(std::move(views)),
      group_(heads / key_heads),
      sizes_{views_.front().sizes[0], key_heads} {
  TRELLIS_CHECK(heads % key_heads == 0, "attention: the key heads must divide the query heads");
  for (const HbmView& v : views_)
    strides_.push_back({v.strides[0], v.strides[1] * (v.sizes[1] / key_heads)});
  collapse(sizes_, strides_);
}

Index Heads::offset(std::size_t view, const Head& head) const {
  const HbmView& v = views_[view];
  Index out(v.offset);
  for (std::size_t d = 0; d < sizes_.size(); ++d) out = out + head.outer[d] * strides_[view][d];
  const bool of_queries = group_ > 1 && v.sizes[1] == views_.front().sizes[1];
  return of_queries ? out + head.query * v.strides[1] : out;
}

std::vector<Together> heads_together(const Heads& heads, bool causal, std::int64_t queries,
                                     std::int64_t keys) {
  constexpr std::int64_t kMostStrips = 144, kMostShared = 64,
                         kMostHeads =
                             4;  // code and semaphores of a step; kMostShared: of several heads
  const std::int64_t side = ceil_div(queries, kBlock),
                     strips = side * (side + 1) / 2 * kTilesPerBlock;
  if (!causal || queries != keys || strips > kMostStrips) return {};
  const std::int64_t most = std::clamp<std::int64_t>(kMostShared / strips, 1, kMostHeads),
                     group = heads.queries_per_key();
  std::vector<Together> tried;
  for (std::int64_t outer = std::min(most / group, heads.side_by_side()); outer > 1; --outer)
    tried.push_back({outer, group});
  for (std::int64_t q = std::min(most, group); q >= 1; --q) {
    if (group % q == 0) tried.push_back({1, q});
  }
  return tried;
}

Rows rows_of(const HbmView& view, const Index& head_offset, const Index& first,
             std::int64_t count) {
  const std::int64_t row_stride = view.strides[2];
  return {view.buffer, view.dtype,   head_offset + first * row_stride, row_stride, view.strides[3],
          count,       view.sizes[3]};
}

namespace {

/// The two parts of a block [p, t, width]: its full tiles, and the last one when it has fewer rows.
template <typename Part>
void block_parts(const Rows& rows, const Index& block, std::int64_t count, Part part) {
  const std::int64_t full = count / kTile, rest = count % kTile;
  const Index offset = rows.offset + block * (kBlock * rows.row_stride);
  const isa::Dim columns{rows.column_stride, static_cast<std::int32_t>(rows.width)};
  if (full > 0) {
    part(Index(0),
         Dims{{rows.width, static_cast<std::int32_t>(full)},
              {1, static_cast<std::int32_t>(rows.width)}},
         Phase::hbm(rows.buffer, rows.dtype, kTile, rows.row_stride,
                    {{rows.row_stride * kTile, static_cast<std::int32_t>(full)}, columns}, offset));
  }
  if (rest > 0) {
    part(Index(full * rows.width), row(rows.width),
         Phase::hbm(rows.buffer, rows.dtype, static_cast<int>(rest), rows.row_stride, {columns},
                    offset + Index(full * kTile * rows.row_stride)));
  }
}

void keep_natural(Phase& phase, const Rows& rows, const RowTiles& into, const Index& block,
                  std::int64_t count, TileId staged) {
  const std::int64_t full = count / kTile, rest = count % kTile, w = rows.width;
  const Index at = block * (kTilesPerBlock * into.natural_width);
  const isa::Dim columns{1, static_cast<std::int32_t>(w)};
  const std::int32_t n = static_cast<std::int32_t>(full);
  if (full > 0) {
    phase.copy(Engine::kGpSimd,
               phase.at(into.natural, into.dtype, kTile, {{into.natural_width, n}, columns}, at),
               phase.at(staged, rows.dtype, kTile, {{w, n}, columns}));
  }
  if (rest > 0) {
    phase.copy(Engine::kGpSimd,
               phase.at(into.natural, into.dtype, static_cast<int>(rest), {columns},
                        at + Index(full * into.natural_width)),
               phase.at(staged, rows.dtype, static_cast<int>(rest), {columns}, full * w));
  }
}

/// Rows of a block that only have to be transposed may come in runs of several on one partition,
/// row f·p + t in place of 128 t + p: few long descriptors in place of many short ones.
bool in_runs(const Rows& rows, const RowTiles& into, std::int64_t count) {
  return into.natural == isa::kNone && rows.column_stride == 1 && rows.row_stride == rows.width &&
         count % kTile == 0;
}

void stage(Phase& phase, const Rows& rows, const RowTiles& into, const Index& block,
           std::int64_t count, TileId staged) {
  if (!in_runs(rows, into, count)) return load_block(phase, rows, block, count, staged);
  const std::int64_t run = count / kTile * rows.width;
  phase.load(phase.at(staged, rows.dtype, kTile, row(run)),
             Phase::hbm(rows.buffer, rows.dtype, kTile, run, row(run),
                        rows.offset + block * (kBlock * rows.width)));
}

void keep_transposed(Phase& phase, const Rows& rows, const RowTiles& into, const Index& block,
                     std::int64_t count, TileId staged) {
  const TileId bank = phase.psum(2);
  const int width = static_cast<int>(rows.width);
  const bool runs = in_runs(rows, into, count);
  const std::int64_t run = count / kTile;
  std::int64_t tile = 0;
  for (const std::int64_t n : tile_sizes(count)) {
    const Ref to =
        runs ? phase.at(bank, DType::kFp32, width, {{run, static_cast<std::int32_t>(n)}}, tile)
             : phase.at(bank, DType::kFp32, width, row(n), tile * kTile);
    phase.transpose(
        to, phase.at(staged, rows.dtype, static_cast<int>(n), row(rows.width), tile * rows.width));
    ++tile;
  }
  const Ref to = phase.at(into.transposed, into.dtype, width, row(count), block * kBlock),
            from = phase.at(bank, DType::kFp32, width, row(count));
  into.scale == 1 ? phase.copy(Engine::kVector, to, from)
                  : phase.tensor_scalar(to, from, AluOp::kMultiply, into.scale);
}

void keep(Phase& phase, const Rows& rows, const RowTiles& into, const Index& block,
          std::int64_t count, TileId staged) {
  if (into.natural != isa::kNone) keep_natural(phase, rows, into, block, count, staged);
  if (into.transposed != isa::kNone) keep_transposed(phase, rows, into, block, count, staged);
}

}  // namespace

void load_block(Phase& phase, const Rows& rows, const Index& block, std::int64_t count,
                TileId into) {
  block_parts(rows, block, count, [&](const Index& at, const Dims& dims, const Ref& hbm) {
    phase.load(phase.at(into, rows.dtype, hbm.pattern.num_partitions, dims, at), hbm);
  });
}

void store_block(Phase& phase, const Rows& rows, const Index& block, std::int64_t count,
                 TileId from) {
  block_parts(rows, block, count, [&](const Index& at, const Dims& dims, const Ref& hbm) {
    phase.store(hbm, phase.at(from, rows.dtype, hbm.pattern.num_partitions, dims, at));
  });
}

void load_rows(Phase& phase, const Rows& rows, const RowTiles& into) {
  blocks(phase, rows.count, [&](const Index& block, std::int64_t count) {
    // Three slots: the next head's first rows arrive while this one is computed.
    const TileId staged = phase.sbuf(kTilesPerBlock * rows.width * isa::size_bytes(rows.dtype), 3);
    stage(phase, rows, into, block, count, staged);
    keep(phase, rows, into, block, count, staged);
  });
}

void load_rows_ahead(Phase& phase, const Rows& rows, const RowTiles& into) {
  const std::int64_t blocks = ceil_div(rows.count, kBlock);
  std::vector<TileId> staged;
  for (std::int64_t b = 0; b < blocks; ++b) {
    staged.push_back(phase.sbuf(kTilesPerBlock * rows.width * isa::size_bytes(rows.dtype), 2));
    stage(phase, rows, into, b, std::min(kBlock, rows.count - b * kBlock), staged.back());
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    phase.scope([&] {
      keep(phase, rows, into, b, std::min(kBlock, rows.count - b * kBlock),
           staged[static_cast<std::size_t>(b)]);
    });
  }
}

namespace {

Ref columns_of(const Phase& phase, const Rows& rows, TileId from, const Index& first,
               std::int64_t count) {
  return phase.at(from, DType::kFp32, static_cast<int>(rows.width), row(count), first);
}

/// Where it lies transposed in HBM already, neighbours on chip are neighbours there.
void store_columns(Phase& phase, const Rows& rows, const Index& block, std::int64_t count,
                   TileId from, double scale) {
  const int p = static_cast<int>(rows.width);
  const Ref out =
      phase.at(phase.sbuf(kBlock * isa::size_bytes(rows.dtype), 2), rows.dtype, p, row(count));
  phase.activation(isa::Activation::kIdentity, out,
                   columns_of(phase, rows, from, block * kBlock, count), scale);
  phase.store(Phase::hbm(rows.buffer, rows.dtype, p, rows.column_stride, row(count),
                         rows.offset + block * kBlock),
              out);
}

void store_rows(Phase& phase, const Rows& rows, const Index& block, std::int64_t count, TileId from,
                double scale) {
  const std::int64_t w = rows.width, full = count / kTile, rest = count % kTile;
  const TileId bank = phase.psum(3),
               out = phase.sbuf(kTilesPerBlock * w * isa::size_bytes(rows.dtype), 4);
  const auto scaled = [&](std::int64_t first, std::int64_t tiles, std::int64_t n) {
    const int p = static_cast<int>(n);
    phase.activation(isa::Activation::kIdentity,
                     phase.at(out, rows.dtype, p, row(tiles * w), first * w),
                     phase.at(bank, DType::kFp32, p, row(tiles * w), first * w), scale);
  };
  std::int64_t t = 0;
  for (const std::int64_t n : tile_sizes(count)) {
    phase.transpose(phase.at(bank, DType::kFp32, static_cast<int>(n), row(w), t * w),
                    columns_of(phase, rows, from, block * kBlock + Index(t * kTile), n));
    ++t;
  }
  if (full > 0) scaled(0, full, kTile);
  if (rest > 0) scaled(full, 1, rest);
  store_block(phase, rows, block, count, out);
}

}  // namespace

void store_transposed(Phase& phase, const Rows& rows, TileId from, double scale) {
  const auto store = rows.row_stride == 1 && rows.column_stride != 1 ? store_columns : store_rows;
  blocks(phase, rows.count, [&](const Index& block, std::int64_t count) {
    store(phase, rows, block, count, from, scale);
  });
}

TileId causal_mask(Phase& phase) {
  const TileId mask = phase.sbuf(kTile * 4);
  const Ref all = phase.at(mask, DType::kFp32, kTile, row(kTile));
  phase.scope([&] {
    // An iota counts 128 p + column over the square and p over a column: column − p is the first
    // minus 129 p.
    const Ref diagonal = phase.at(phase.sbuf(4), DType::kFp32, kTile, row(1));
    phase.emit(Engine::kGpSimd, isa::Opcode::kIota, all).imm1 = 1;
    phase.emit(Engine::kGpSimd, isa::Opcode::kIota, diagonal).imm1 = kTile + 1;
    phase.tensor_column(all, all, AluOp::kSubtract, diagonal, AluOp::kGreater, 0);
    phase.tensor_scalar(all, all, AluOp::kMultiply, kMasked);
  });
  return mask;
}

bool narrow_window(bool causal, const HbmView& q, const HbmView& k, std::int64_t& window) {
  const std::int64_t length = q.sizes[2];
  if (causal && window >= length) window = 0;
  return window == 0 || (causal && length == k.sizes[2] && length % kBlock == 0);
}

TileId SlidingWindow::edge_mask(Phase& phase) const {
  constexpr std::int64_t kWidth = 2 * kTile;
  const TileId mask = phase.sbuf(kWidth * 4);
  const Ref all = phase.at(mask, DType::kFp32, kTile, row(kWidth));
  phase.scope([&] {
    // As in causal_mask: column − p is one count minus the other.
    const Ref diagonal = phase.at(phase.sbuf(4), DType::kFp32, kTile, row(1));
    phase.emit(Engine::kGpSimd, isa::Opcode::kIota, all).imm1 = 1;
    phase.emit(Engine::kGpSimd, isa::Opcode::kIota, diagonal).imm1 = kWidth + 1;
    phase.tensor_column(all, all, AluOp::kSubtract, diagonal, AluOp::kLessEqual,
                        static_cast<double>(tiles() * kTile - keys_));
    phase.tensor_scalar(all, all, AluOp::kMultiply, kMasked);
  });
  return mask;
}

SlidingWindow::Edge SlidingWindow::edge(std::int64_t distance, std::int64_t keys) const {
  const bool second =
      tiles() * kTile > keys_;  // the last queries do not see all keys of the second tile
  const std::int64_t column = (tiles() - distance) * kTile, width = second ? 2 * kTile : kTile;
  return column < width ? Edge{std::min(width - column, keys), column} : Edge{};
}

}  // namespace trellis::device::attention
