#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/integer_math.h"
#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/phase.h"
#include "sim/config/system_config.h"

/// Shared parts of the forward and the backward pass of attention: loops over heads, loading rows
/// on chip, and the cut of the square of scores into blocks.
namespace trellis::device::attention {

constexpr std::int64_t kTile = 128;         ///< queries or keys on the partitions
constexpr std::int64_t kBlock = 4 * kTile;  ///< queries or keys of one step; as fp32 one PSUM bank
constexpr std::int64_t kTilesPerBlock = 4;
constexpr double kMasked = -1e30;  ///< added to a score that must not count

/// The sizes of the tiles of `count` ≤ kBlock rows.
[[nodiscard]] std::vector<std::int64_t> tile_sizes(std::int64_t count);

/// Rows to hold at a time when `fitting` blocks fit: as few and as equal ranges as possible. 0 when
/// none fits.
[[nodiscard]] std::int64_t balanced_reach(std::int64_t rows, std::int64_t fitting);

/// The dtype of products and probabilities between instructions.
[[nodiscard]] isa::DType work_dtype(const std::vector<const HbmView*>& inputs);
/// The dtype of the array's transposes in PSUM: from NeuronCore-v3 on 16-bit data may stay so,
/// which is faster to copy.
[[nodiscard]] isa::DType transposed_dtype(isa::DType work, const sim::CoreConfig& core);
/// fp32 products take one pass: the array reads fp32 operands as tf32.
[[nodiscard]] isa::DType array_dtype(isa::DType dtype);

/// The current (batch, head) of the loops.
struct Head {
  std::vector<Index> outer;  ///< (batch, key head), merged where the strides allow it
  Index query;               ///< among the query heads of the key head
};

/// The loops over (batch, key head) of views [batch, heads or key heads, …], of which the first has
/// all heads.
class Heads {
 public:
  Heads(std::vector<HbmView> views, std::int64_t heads, std::int64_t key_heads);

  template <typename Body>
  void loop(Phase& phase, Body body) const {
    if (sizes_.size() == 1) {
      phase.loop(sizes_[0], [&](const Index& i) { body(Head{{i}, 0}); });
    } else {
      phase.loop(sizes_[0], [&](const Index& i) {
        phase.loop(sizes_[1], [&](const Index& j) { body(Head{{i, j}, 0}); });
      });
    }
  }
  /// The same, up to `together` (batch, key head) at a time: body(std::vector<Head>).
  template <typename Body>
  void loop_together(Phase& phase, std::int64_t together, Body body) const {
    const auto inner = [&](const std::vector<Index>& outer) {
      phase.tiles(sizes_.back(), together, [&](const Index& first, std::int64_t count) {
        std::vector<Head> heads;
        for (std::int64_t i = 0; i < count; ++i) {
          heads.push_back({outer, 0});
          heads.back().outer.push_back(first + Index(i));
        }
        body(heads);
      });
    };
    if (sizes_.size() == 1) return inner({});
    phase.loop(sizes_[0], [&](const Index& i) { inner({i}); });
  }
  [[nodiscard]] std::int64_t queries_per_key() const { return group_; }
  /// How many (batch, key head) loop_together() can give at once.
  [[nodiscard]] std::int64_t side_by_side() const { return sizes_.back(); }
  /// Offset of element (0, 0) of view number `view` at `head`.
  [[nodiscard]] Index offset(std::size_t view, const Head& head) const;

 private:
  std::vector<HbmView> views_;
  std::int64_t group_ = 1;
  std::vector<std::int64_t> sizes_;
  std::vector<std::vector<std::int64_t>> strides_;  ///< per view
};

/// `count` rows of `width` elements in HBM.
struct Rows {
  std::uint32_t buffer = 0;
  isa::DType dtype = isa::DType::kFp32;
  Index offset;
  std::int64_t row_stride = 0, column_stride = 1;
  std::int64_t count = 0, width = 0;
};
/// Rows [first, first + count) of a head of `view`, whose element (0, 0) is at `head_offset`.
[[nodiscard]] Rows rows_of(const HbmView& view, const Index& head_offset, const Index& first,
                           std::int64_t count);

/// Where rows go on chip; either form may be left out. Row 128 t + p lies in `natural` [p, t,
/// natural_width]; `transposed` is [width partitions, count].
struct RowTiles {
  isa::DType dtype = isa::DType::kFp32;
  TileId natural = isa::kNone;
  std::int64_t natural_width = 0;
  TileId transposed = isa::kNone;
  double scale = 1;  ///< of the transposed form
};
void load_rows(Phase& phase, const Rows& rows, const RowTiles& into);
/// The same without loops and in its own memory: inside a loop the next turn's rows arrive while
/// this one's are in use.
void load_rows_ahead(Phase& phase, const Rows& rows, const RowTiles& into);

/// Rows to or from [p, t, width] of one block: 128 rows in one transfer wherever they are full.
void load_block(Phase& phase, const Rows& rows, const Index& block, std::int64_t count,
                TileId into);
void store_block(Phase& phase, const Rows& rows, const Index& block, std::int64_t count,
                 TileId from);

/// scale · fromᵀ to HBM, `from` [width partitions, count] of fp32.
void store_transposed(Phase& phase, const Rows& rows, TileId from, double scale);

/// [128, 128] of fp32: 0 where column ≤ partition, kMasked elsewhere.
[[nodiscard]] TileId causal_mask(Phase& phase);

/// Sets a causal window to 0, all keys, when it reaches past the first one. False when the
/// lowerings have no form for it.
[[nodiscard]] bool narrow_window(bool causal, const HbmView& q, const HbmView& k,
                                 std::int64_t& window);

/// A sliding window in tiles: a query of tile t sees keys of tiles t − tiles() … t; the first two
/// of these may have keys that it does not see.
class SlidingWindow {
 public:
  explicit SlidingWindow(std::int64_t keys) : keys_(keys) {}

  [[nodiscard]] std::int64_t tiles() const { return ceil_div(keys_ - 1, kTile); }
  /// Whole blocks of keys, at least as many as lie between a query and the first key that it sees.
  [[nodiscard]] std::int64_t blocks() const { return ceil_div(tiles(), kTilesPerBlock); }
  /// [128, 256] of fp32 for tiles t − tiles() and the next one: 0 at keys that a query of tile t
  /// sees or that follow it, kMasked before the window.
  [[nodiscard]] TileId edge_mask(Phase& phase) const;
  /// The edge of a strip of `keys` keys from tile t − distance on: how many of its first keys the
  /// edge's mask concerns, and the mask's column for the first.
  struct Edge {
    std::int64_t keys = 0, column = 0;
  };
  [[nodiscard]] Edge edge(std::int64_t distance, std::int64_t keys) const;

 private:
  std::int64_t keys_;
};

/// One rectangle of scores: queries [query, query + queries), keys [key, key + keys), first ones in
/// blocks.
struct Area {
  Index query;
  std::int64_t queries = 0;
  Index key;
  std::int64_t keys = 0;
};

/// Heads of a short causal square whose strips make one step, which fills and empties the pipeline
/// of engines once.
struct Together {
  std::int64_t key_heads = 0, queries = 0;  ///< of each key head; 0: none, the sequence is long
};
/// The ways to compute heads together, from the most heads that a step may have down to one.
[[nodiscard]] std::vector<Together> heads_together(const Heads& heads, bool causal,
                                                   std::int64_t queries, std::int64_t keys);

/// The blocks on the diagonal of a causal square: body(block, queries, keys), both at most kBlock.
template <typename Body>
void diagonal_blocks(Phase& phase, std::int64_t queries, std::int64_t keys, Body body) {
  const std::int64_t full = std::min(queries, keys) / kBlock;
  phase.loop(full, [&](const Index& i) { body(i, kBlock, kBlock); });
  const std::int64_t done = full * kBlock;
  if (done < queries && done < keys)
    phase.scope([&] {
      body(Index(full), std::min(kBlock, queries - done), std::min(kBlock, keys - done));
    });
}

/// The rest below the diagonal, as squares of 1, 2, 4 … blocks: trip counts stay constant and the
/// code grows with the logarithm of the length only. Squares smaller than `least_side` are the
/// caller's.
///   . . . .
///   1 . . .      the digit is the level: level 1 has the squares that touch the diagonal's blocks,
///   2 2 . .      level 2 those of twice the side, and so on
///   2 2 1 .
template <typename Body>
void below_diagonal(Phase& phase, std::int64_t queries, std::int64_t keys, std::int64_t least_side,
                    Body body) {
  for (std::int64_t side = least_side; side < queries; side *= 2) {
    const std::int64_t blocks = side / kBlock;
    const std::int64_t full = std::min(queries / (2 * side), (keys + side) / (2 * side));
    phase.loop(full, [&](const Index& i) {
      body(Area{i * (2 * blocks) + Index(blocks), side, i * (2 * blocks), side});
    });
    const std::int64_t key = 2 * side * full, query = key + side;
    if (query >= queries || key >= keys) continue;
    phase.scope([&] {
      body(Area{Index(query / kBlock), std::min(side, queries - query), Index(key / kBlock),
                std::min(side, keys - key)});
    });
  }
}

/// Calls body(block, size) for the blocks of [0, count): full ones in a loop, then the rest.
template <typename Body>
void blocks(Phase& phase, std::int64_t count, Body body) {
  phase.loop(count / kBlock, [&](const Index& i) { body(i, kBlock); });
  if (count % kBlock != 0) phase.scope([&] { body(Index(count / kBlock), count % kBlock); });
}

}  // namespace trellis::device::attention
