#pragma once

#include "device/compiler/attention/lower_attention.h"
#include "device/compiler/attention/lower_attention_common.h"
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

/// Flash attention: queries on the partitions, tiles of 128 against 512 keys at a time ("strips"),
/// several strips in flight. Queries come on chip times −scale, so that the exponent is minimum −
/// score with no further step. The running minimum and the output, with the running sum as one more
/// column (keys' values carry a column of ones), stay in SBUF for all queries of a head.
namespace trellis::device::attention::forward {

using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

/// kOfScores: what has an element for each score, a mask or what dropout kept.
enum View : std::size_t { kQ, kOut, kK, kV, kOfScores, kLse };
constexpr std::int64_t kStepKeys = 8 * kBlock;

class Forward {
 public:
  Forward(std::uint32_t kernel, const Attention& a, DType work, std::int64_t reach,
          const sim::CoreConfig& core)
      : a_(a),
        phase_(kernel),
        heads_(views(a), a.q.sizes[1], a.k.sizes[1]),
        d_(a.q.sizes[3]),
        lq_(a.q.sizes[2]),
        lk_(a.causal ? std::min(a.k.sizes[2], a.q.sizes[2]) : a.k.sizes[2]),
        work_(work),
        array_(array_dtype(work)),
        transposed_(transposed_dtype(work, core)),
        corrects_(core.costs.vector_gpsimd_share_sbuf ? Engine::kScalar : Engine::kGpSimd),
        reach_(reach),
        window_(a.window) {}

  [[nodiscard]] std::vector<Together> heads_together() const {
    return attention::heads_together(heads_, a_.causal, a_.q.sizes[2], a_.k.sizes[2]);
  }

  /// With a window: `blocks` of queries slide along it at a time; `own_memory`: the first ones have
  /// their own memory, so that heads overlap too.
  Phase run_window(std::int64_t blocks, bool own_memory);

  Phase run_together(const Together& together);

  Phase run();

 private:
  struct Keys {
    TileId transposed = isa::kNone;  ///< [d, keys]
    TileId values = isa::kNone;      ///< [128, key tile, d + 1]
    Index first;                     ///< of all keys
  };
  struct Queries {
    Head head;
    Index first;                     ///< of all queries
    TileId transposed = isa::kNone;  ///< [d, queries]
    // By tile within the block, so that neighbouring strips share nothing:
    std::array<TileId, kTilesPerBlock> minimum{};  ///< [128, block]
    std::array<TileId, kTilesPerBlock> out{};      ///< [128, block, d + 1]
    std::int64_t count = 0;
    [[nodiscard]] std::int64_t blocks() const { return ceil_div(count, kBlock); }
  };
  /// A block of scores: up to four tiles of queries against one block of keys.
  struct Block {
    const Queries* rows = nullptr;
    const Keys* columns = nullptr;
    Index query, key;
    std::int64_t queries = 0, keys = 0;
    bool diagonal = false;
  };
  /// One tile of queries against one block of keys.
  struct Strip {
    const Queries* rows = nullptr;
    const Keys* columns = nullptr;
    Index query, key;  ///< blocks
    int tile = 0;      ///< in its block
    int queries = 0;
    std::int64_t keys = 0, masked = 0;  ///< the last `masked` keys form the diagonal
    std::int64_t first_key = 0;  ///< from the start of its block of keys; a multiple of a tile
    SlidingWindow::Edge edge;
    std::size_t slot = 0;  ///< which of the buffers below it uses
  };
  static constexpr std::size_t kInFlight = 4;
  /// Tiles in which the strips in flight work.
  struct Buffers {
    std::array<TileId, kInFlight> scores{}, probabilities{}, transposed{}, correction{};
    std::array<TileId, kInFlight> before{};
    std::array<TileId, 2> transposed_bank{}, products{};
    // Dropout: random numbers, what they keep, and sums of what was there before, until the strip's
    // last stage.
    std::array<TileId, 2> drawn{}, kept{};
    std::array<TileId, 8> sums{};
    std::array<TileId, kInFlight> masks{};
  };

  static std::vector<HbmView> views(const Attention& a);

  /// Depth of the buffers that the next chunk of a window fills while this one is computed.
  [[nodiscard]] int depth() const { return a_.window > 0 ? 2 : 1; }
  void load(const Rows& rows, const RowTiles& into);
  template <typename Body>
  void each_block(std::int64_t count, Body body) {
    if (a_.window == 0) return blocks(phase_, count, body);
    for (std::int64_t b = 0; b < count / kBlock; ++b) body(Index(b), kBlock);
  }

  Keys load_keys(const Head& head, const Index& first, std::int64_t count);

  Queries load_queries(const Head& head, const Index& first, std::int64_t count);

  /// All of a short sequence: the strips of several heads make one step.
  void several(const std::vector<Head>& heads, std::int64_t queries);

  /// The blocks on and below the diagonal; heads one after the other, so that strips of one tile of
  /// queries lie at a distance.
  std::vector<Block> square_blocks(const std::vector<Queries>& rows, const std::vector<Keys>& keys,
                                   std::int64_t queries) const;

  void query_rows(const Head& head, std::int64_t first, std::int64_t count, const Keys& resident);

  /// On and below the diagonal. Two blocks on it and the one below them make one step where the
  /// sizes are even.
  void triangle(const Queries& q, const Keys& k, std::int64_t queries, std::int64_t keys);

  /// Along a sliding window: a few blocks of queries at a time with the keys that they see, so that
  /// the next ones arrive and the last ones leave while these are computed. Straight code, so that
  /// every buffer is a ring.
  void slide(const Head& head);

  /// Blocks of queries from `first` on, with `before` tiles of keys before them.
  void chunk(Head head, const Index& first, std::int64_t blocks, std::int64_t before);

  /// Strips of one block of queries of a chunk with `before` keys before it: a strip per tile for
  /// every 512 keys, from the window's edge on.
  std::vector<Strip> window_strips(const Queries& q, const Keys& k, std::int64_t block,
                                   std::int64_t before, std::size_t slot) const;

  /// Computes an area with up to eight blocks of keys per step: every step empties the pipeline
  /// once.
  void rectangle(const Queries& q, const Keys& k, const Area& area);

  /// Strips follow each other through the engines, a stage per turn, so that none waits for
  /// another's result:
  ///   0 Tensor scores   1 Vector minimum, Scalar exponential   3 Tensor transposes
  ///   4 copy, GpSimd or Scalar correction   6 Tensor product   7 Vector sum
  void step(const std::vector<Strip>& strips);

  Buffers make_buffers();

  /// A block takes four turns, however many tiles it has: what a strip adds to is settled before
  /// the next one of its tile corrects it.
  static std::vector<Strip> make_strips(const std::vector<Block>& all);

  /// [queries, keys] of a strip's scores in PSUM.
  Ref scores_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries, row(s.keys));
  }

  void scores(const Strip& s, const Buffers& b);

  void softmax(const Strip& s, const Buffers& b);

  Ref sum_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.sums[s.slot % b.sums.size()], DType::kFp32, s.queries, row(1));
  }
  Ref drawn_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.drawn[s.slot % 2], DType::kInt32, s.queries, row(s.keys));
  }

  /// A draw is below keep · 2³² − 2³¹ with probability keep. The factor comes at the end.
  void drop(const Strip& s, const Buffers& b);

  Ref mask_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.masks[s.slot % kInFlight], a_.mask->dtype, s.queries, row(s.keys));
  }
  /// A strip's part of a tensor of the scores' shape.
  Ref in_hbm(const HbmView& of_scores, const Strip& s) const;

  Ref minimum_of(const Strip& s) const;
  Ref before_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.before[s.slot % kInFlight], DType::kFp32, s.queries, row(1));
  }
  Ref correction_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.correction[s.slot % kInFlight], DType::kFp32, s.queries, row(1));
  }

  Ref out_rows(const Strip& s);

  void transpose(const Strip& s, const Buffers& b);

  /// Vector also reduces: Scalar takes every other copy.
  void copy(const Strip& s, const Buffers& b);

  Ref product_of(const Strip& s, const Buffers& b) const {
    return phase_.at(b.products[s.slot % 2], DType::kFp32, s.queries, row(d_ + 1));
  }

  void multiply(const Strip& s, const Buffers& b);

  void add(const Strip& s, const Buffers& b);

  void finish(const Head& head, const Index& first, const Queries& q);

  /// Transposed so that neighbours in HBM are neighbours in a transfer's row.
  void store_logsumexp(const Head& head, const Index& first, const Queries& q, const Ref& sums);

  const Attention& a_;
  Phase phase_;
  Heads heads_;
  std::int64_t d_, lq_, lk_;
  DType work_, array_;  ///< array_: work_ as the Tensor engine reads it
  DType transposed_;    ///< probabilities in PSUM, transposed
  Engine corrects_;     ///< the running output: GpSimd, unless it would stop Vector
  std::int64_t reach_;
  SlidingWindow window_;
  std::int64_t together_ = 0;  ///< blocks of queries that slide along the window at a time
  bool ahead_ = false;         ///< rows of the next heads or chunk arrive while these are in use
  bool own_memory_ = false;    ///< the first ones have their own memory, so that heads overlap too
  TileId mask_ = isa::kNone, edge_ = isa::kNone;  ///< added where a score must not count: above the
                                                  ///< diagonal, before the window
};

}  // namespace trellis::device::attention::forward
