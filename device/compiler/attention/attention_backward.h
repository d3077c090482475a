#pragma once

#include "device/compiler/attention/lower_attention.h"
#include "device/compiler/attention/lower_attention_common.h"
#include <array>
#include <optional>
#include <utility>
#include <vector>

/// With P = exp(scale · S − logsumexp), delta = rowsum(dO ∘ O) and dS = P ∘ (dP − delta):
///   dVᵀ += dOᵀ P,  dKᵀ += scale · Qᵀ dS,  dQᵀ += scale · Kᵀ dSᵀ.
/// Gradients are kept transposed, [d, rows]: then the wide operand of every product is the moving
/// one, and only dS must be transposed. A phase holds a range of keys with their gradients; dQ
/// passes from phase to phase through HBM. With a sliding window it also holds all queries that see
/// those keys.
namespace trellis::device::attention::backward {

using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

constexpr std::int64_t kStepQueries = 4 * kBlock;
/// kOfScores: what has an element for each score, a mask or what dropout kept.
enum View : std::size_t {
  kQ,
  kGradQ,
  kGradOut,
  kOut,
  kLse,
  kPartial,
  kK,
  kV,
  kGradK,
  kGradV,
  kOfScores
};

class Backward {
 public:
  /// The phase of keys [first, first + count). `partial` [batch, heads, d, lq]: dQᵀ on its way.
  Backward(std::uint32_t kernel, const AttentionBackward& a, const HbmView& partial, DType work,
           std::int64_t reach, std::int64_t first, DType transposed)
      : a_(a),
        partial_(partial),
        phase_(kernel),
        heads_(
            {a.q, a.grad_q, a.grad_out, a.out, a.logsumexp, partial, a.k, a.v, a.grad_k, a.grad_v,
             a.mask      ? *a.mask
             : a.dropout ? *a.dropout->kept
                         : a.q},
            a.q.sizes[1], a.k.sizes[1]),
        d_(a.q.sizes[3]),
        lq_(a.q.sizes[2]),
        lk_(a.k.sizes[2]),
        work_(work),
        array_(array_dtype(work)),
        transposed_(transposed),
        reach_(reach),
        first_(first),
        window_(a.window) {}

  [[nodiscard]] std::vector<Together> heads_together() const {
    return attention::heads_together(heads_, a_.causal && a_.window == 0, lq_, lk_);
  }

  Phase run();

  /// All of a short sequence: the strips of several heads make one step. REQUIRES: the phase is of
  /// all keys.
  Phase run_together(const Together& together);

 private:
  struct Keys {
    std::int64_t count = 0;
    TileId k = isa::kNone, k_transposed = isa::kNone, v_transposed = isa::kNone;
    TileId grad_k = isa::kNone, grad_v = isa::kNone;  ///< transposed, fp32
  };
  struct Queries {
    Head head;
    Index first;  ///< of all queries
    std::int64_t count = 0;
    TileId q = isa::kNone, q_transposed = isa::kNone, grad_out = isa::kNone,
           grad_out_transposed = isa::kNone;
    TileId logsumexp = isa::kNone, delta = isa::kNone;  ///< negated; [128, query tile]
    TileId grad_q = isa::kNone;                         ///< transposed, fp32
  };
  /// The sums over queries of one block of keys, in PSUM.
  struct Sums {
    TileId grad_k = isa::kNone, grad_v = isa::kNone;
  };
  /// One block of queries against one block of keys.
  struct Block {
    const Queries* rows = nullptr;
    const Keys* columns = nullptr;
    Index query, key;
    std::int64_t queries = 0, keys = 0;
    bool diagonal = false;
    bool starts = false,
         ends = false;  ///< a step's sums of its keys with it; the caller's otherwise
    std::optional<std::int64_t> distance =
        std::nullopt;  ///< in a window: tiles from the block's first key to its first query
  };
  /// How a step treats the sums of its key block.
  struct Start {
    bool in_loop = false;  ///< the step is in a loop, whose first turn starts them
    bool here = false;     ///< no loop, and the step starts them
  };
  /// One tile of queries against one block of keys.
  struct Strip {
    const Block* block = nullptr;
    std::int64_t tile = 0;
    int queries = 0;
    std::int64_t keys = 0, masked = 0;  ///< the last `masked` keys form the diagonal
    bool first = false;                 ///< it starts the sums of its keys where the step does
    bool last = false;                  ///< of its block
    std::size_t slot = 0;               ///< which of the buffers below it uses
    std::size_t parity = 0;             ///< of its block, which neighbouring ones differ in
    std::int64_t first_key = 0;         ///< from the start of its block; a multiple of a tile
    SlidingWindow::Edge edge;
  };
  static constexpr std::size_t kInFlight = 3;
  /// Tiles in which the strips in flight work.
  struct Buffers {
    std::array<TileId, 2> scores{}, grads{}, shifted{}, transposed{};
    std::array<TileId, kInFlight> probabilities{}, grad{};
    std::array<TileId, kInFlight> of_scores{};  ///< a mask, or what dropout kept
    TileId bank = isa::kNone, grad_q = isa::kNone;
  };

  Keys load_keys(const Head& head);

  /// Ahead: the rows of the next heads arrive while these are in use.
  void load(const Rows& rows, const RowTiles& into);

  /// [d, count] of fp32.
  TileId zeros(std::int64_t count);
  Ref transposed(TileId tile, const Index& from, std::int64_t count) {
    return phase_.at(tile, DType::kFp32, static_cast<int>(d_), row(count), from);
  }

  void visit_queries(const Head& head, const Keys& keys);

  /// All queries that see the phase's keys: its own rows and, after them, those that the window
  /// carries over to the next phase.
  void visit_window(const Head& head, const Keys& k);

  /// The first `tiles` tiles of queries from block `key` of keys on.
  void window_of(const Queries& q, const Keys& k, const Index& key, std::int64_t tiles);

  void query_rows(const Head& head, const Index& first, std::int64_t count, const Keys& keys,
                  bool diagonal);

  Ref partial(const Head& head, const Index& first, std::int64_t count);

  /// The first `carried` rows continue what earlier phases left of their gradients.
  Queries load_queries(const Head& head, const Index& first, std::int64_t count,
                       std::int64_t carried);

  /// Neighbours in HBM arrive as rows and are transposed onto the partitions.
  void load_logsumexp(const Head& head, const Index& first, const Queries& q);

  void find_delta(const Head& head, const Index& first, const Queries& q);

  void store_key_gradients(Head head, const Keys& keys);

  /// `queries` query heads from `from` on of each key head.
  void several(const std::vector<Head>& heads, const std::vector<Keys>& keys, const Index& from,
               std::int64_t queries);

  /// The blocks on and below the diagonal, those of the same keys one after the other: they have
  /// one sum.
  std::vector<Block> square_blocks(const std::vector<Queries>& rows, const std::vector<Keys>& keys,
                                   std::int64_t queries) const;

  Sums make_sums() { return {phase_.psum(), phase_.psum()}; }

  void add_sums(const Keys& k, const Index& key, std::int64_t keys, const Sums& sums);

  void diagonal_block(const Queries& q, const Keys& k, const Index& i, std::int64_t queries,
                      std::int64_t keys);

  void rectangle(const Queries& q, const Keys& k, const Area& area);

  /// The Tensor engine is two strips ahead with its scores while the other engines work on the
  /// earlier ones'.
  void step(const std::vector<Block>& all, const Start& start, const Sums& sums) {
    run_strips(make_strips(all), start, sums);
  }

  void run_strips(const std::vector<Strip>& strips, const Start& start, const Sums& sums);

  Buffers make_buffers();

  /// On the diagonal the last tile comes first: it sees all keys, so that it can start every sum.
  static std::vector<Strip> make_strips(const std::vector<Block>& all);

  /// The tiles [first, last] of a block of keys that a tile of queries sees, `distance` tiles from
  /// the block's first key.
  struct Seen {
    std::int64_t first = 0, last = 0;
  };
  [[nodiscard]] Seen seen(std::int64_t distance) const;

  /// Strips of one block of keys. Strips that together see every key once come first, so that they
  /// can start every sum.
  [[nodiscard]] std::vector<Strip> window_strips(const std::vector<Block>& all) const;

  [[nodiscard]] Strip window_strip(const Block& block, std::int64_t tile, bool starts,
                                   std::size_t parity) const;

  Ref probabilities_of(const Strip& t, const Buffers& b) const {
    return phase_.at(b.probabilities[t.slot % kInFlight], work_, t.queries, row(t.keys));
  }
  Ref scores_of(const Strip& t, const Buffers& b) const {
    return phase_.at(b.scores[t.slot % 2], DType::kFp32, t.queries, row(t.keys));
  }
  Ref grads_of(const Strip& t, const Buffers& b) const {
    return phase_.at(b.grads[t.slot % 2], DType::kFp32, t.queries, row(t.keys));
  }
  [[nodiscard]] static Index first_query(const Strip& t) {
    return t.block->query * kBlock + Index(t.tile * kTile);
  }
  [[nodiscard]] static Index first_key(const Strip& t) {
    return t.block->key * kBlock + Index(t.first_key);
  }

  /// S and dP of one tile.
  void multiply_queries(const Strip& t, const Buffers& b);

  /// P and dS of one tile.
  void find_grad(const Strip& t, const Buffers& b);

  /// A strip's part of a tensor of the scores' shape, in the tensor's type or another one.
  Ref load_of_scores(const HbmView& view, const Strip& t, const Buffers& b, DType as);

  /// Adds one tile to the sums over queries, and transposes its dS.
  void use_grad(const Strip& t, const Start& start, const Sums& sums, const Buffers& b);

  void add_grad_q(const Strip& last, const Buffers& b);

  /// The block's tiles see different keys of a window.
  [[nodiscard]] bool partly_seen(const Block& block) const;

  void multiply_tiles(const Keys& k, const Strip& last, const Buffers& b);

  void multiply_block(const Keys& k, const Strip& last, const Buffers& b);

  const AttentionBackward& a_;
  const HbmView& partial_;
  Phase phase_;
  Heads heads_;
  std::int64_t d_, lq_, lk_;
  DType work_, array_;  ///< array_: work_ as the Tensor engine reads it
  DType transposed_;    ///< gradients of scores in PSUM, transposed
  std::int64_t reach_, first_;
  bool ahead_ = false;
  SlidingWindow window_;
  TileId mask_ = isa::kNone,
         edge_ = isa::kNone;  ///< added to scores of keys after the query and before the window
};

}  // namespace trellis::device::attention::backward
