#include "device/compiler/lower_attention.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "device/compiler/lower_attention_common.h"

/// With P = exp(scale · S − logsumexp), delta = rowsum(dO ∘ O) and dS = P ∘ (dP − delta):
///   dVᵀ += dOᵀ P,  dKᵀ += scale · Qᵀ dS,  dQᵀ += scale · Kᵀ dSᵀ.
/// Gradients are kept transposed, [d, rows]: then the wide operand of every product is the moving one, and only dS must be turned. A phase
/// holds a range of keys with their gradients; dQ passes from phase to phase through HBM. With a sliding window it also holds all queries that
/// see those keys.
namespace trellis::device {
namespace {

using namespace attention;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

constexpr std::int64_t kStepQueries = 4 * kBlock;
enum View : std::size_t { kQ, kGradQ, kGradOut, kOut, kLse, kPartial, kK, kV, kGradK, kGradV, kKept };

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const AttentionBackward& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block = kBlock * 4 * size + 3 * kTilesPerBlock * d * size + 3 * kBlock * 4 + 2 * kTilesPerBlock * 4;
  const std::int64_t fixed = 4 * kTilesPerBlock * d * 4 + (2 * kTilesPerBlock + 8) * kBlock * size + 4096 + (a.window > 0 ? 2 * kTile * 4 : 0) + (a.dropout ? 3 * kBlock * size : 0);
  const std::int64_t fitting = (sbuf - fixed) / block;
  if (a.window == 0) return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), fitting);
  return balanced_reach(a.k.sizes[2], std::min(fitting, kTile / kTilesPerBlock) - SlidingWindow(a.window).blocks());
}

class Backward {
 public:
  /// The phase of keys [first, first + count). `partial` [batch, heads, d, lq]: dQᵀ on its way.
  Backward(std::uint32_t kernel, const AttentionBackward& a, const HbmView& partial, DType work, std::int64_t reach, std::int64_t first, DType turned)
      : a_(a), partial_(partial), phase_(kernel),
        heads_({a.q, a.grad_q, a.grad_out, a.out, a.logsumexp, partial, a.k, a.v, a.grad_k, a.grad_v, a.dropout ? *a.dropout->kept : a.q}, a.q.sizes[1], a.k.sizes[1]),
        d_(a.q.sizes[3]), lq_(a.q.sizes[2]), lk_(a.k.sizes[2]), work_(work), array_(array_dtype(work)), turned_(turned), reach_(reach), first_(first),
        window_(a.window) {}

  [[nodiscard]] std::vector<Together> heads_together() const { return attention::heads_together(heads_, a_.causal && a_.window == 0, lq_, lk_); }

  Phase run() {
    if (a_.causal) mask_ = causal_mask(phase_);
    if (a_.window > 0) edge_ = window_.edge_mask(phase_);
    heads_.loop(phase_, [&](Head head) {
      const Keys keys = load_keys(head);
      phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
        head.query = i;
        a_.window > 0 ? visit_window(head, keys) : visit_queries(head, keys);
      });
      store_key_gradients(head, keys);
    });
    return std::move(phase_);
  }

  /// All of a short sequence: the strips of several heads make one step. REQUIRES: the phase is of all keys.
  Phase run_together(const Together& together) {
    ahead_ = true;
    mask_ = causal_mask(phase_);
    heads_.loop_together(phase_, together.key_heads, [&](const std::vector<Head>& heads) {
      std::vector<Keys> keys;
      for (const Head& head : heads) keys.push_back(load_keys(head));
      phase_.loop(heads_.queries_per_key() / together.queries, [&](const Index& i) { several(heads, keys, i * together.queries, together.queries); });
      for (std::size_t h = 0; h < heads.size(); ++h) store_key_gradients(heads[h], keys[h]);
    });
    return std::move(phase_);
  }

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
    TileId q = isa::kNone, q_transposed = isa::kNone, grad_out = isa::kNone, grad_out_transposed = isa::kNone;
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
    bool starts = false, ends = false;                    ///< a step's sums of its keys with it; the caller's otherwise
    std::optional<std::int64_t> distance = std::nullopt;  ///< in a window: tiles from the block's first key to its first query
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
  /// What the strips in flight work in.
  struct Buffers {
    std::array<TileId, 2> scores{}, grads{}, shifted{}, turned{};
    std::array<TileId, kInFlight> probabilities{}, grad{};
    std::array<TileId, kInFlight> kept{};  ///< dropout
    TileId bank = isa::kNone, grad_q = isa::kNone;
  };

  Keys load_keys(const Head& head) {
    const std::int64_t size = isa::size_bytes(work_);
    Keys keys;
    keys.count = std::min(reach_, lk_ - first_);
    keys.k = phase_.sbuf(ceil_div(keys.count, kTile) * d_ * size);
    keys.k_transposed = phase_.sbuf(keys.count * size);
    keys.v_transposed = phase_.sbuf(keys.count * size);
    keys.grad_k = zeros(keys.count);
    keys.grad_v = zeros(keys.count);
    load(rows_of(a_.k, heads_.offset(kK, head), first_, keys.count), {work_, keys.k, d_, keys.k_transposed});
    load(rows_of(a_.v, heads_.offset(kV, head), first_, keys.count), {work_, isa::kNone, 0, keys.v_transposed});
    return keys;
  }

  /// Ahead: the rows of the next heads arrive while these are in use.
  void load(const Rows& rows, const RowTiles& into) {
    if (ahead_) return load_rows_ahead(phase_, rows, into);
    phase_.scope([&] { load_rows(phase_, rows, into); });
  }

  /// [d, count] of fp32.
  TileId zeros(std::int64_t count) {
    const TileId tile = phase_.sbuf(count * 4);
    phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, transposed(tile, 0, count));
    return tile;
  }
  Ref transposed(TileId tile, const Index& from, std::int64_t count) { return phase_.at(tile, DType::kFp32, static_cast<int>(d_), row(count), from); }

  void visit_queries(const Head& head, const Keys& keys) {
    std::int64_t from = 0;
    if (a_.causal) {
      from = first_ + reach_;
      if (first_ < lq_) phase_.scope([&] { query_rows(head, first_, std::min(reach_, lq_ - first_), keys, true); });
    }
    if (from >= lq_) return;
    phase_.tiles(lq_ - from, reach_, [&](const Index& i, std::int64_t count) { query_rows(head, i + Index(from), count, keys, false); });
  }

  /// All queries that see the phase's keys: its own rows and, after them, those that the window carries over to the next phase.
  void visit_window(const Head& head, const Keys& k) {
    const std::int64_t reach = window_.blocks() * kBlock, count = std::min(k.count + reach, lq_ - first_);
    const Queries q = load_queries(head, first_, count, first_ > 0 ? std::min(reach, count) : 0);
    const std::int64_t blocks = k.count / kBlock, complete = std::min(blocks, std::max<std::int64_t>(0, count / kBlock - window_.blocks()));
    phase_.loop(complete, [&](const Index& j) { window_of(q, k, j, window_.tiles() + kTilesPerBlock); });
    for (std::int64_t j = complete; j < blocks; ++j) {
      phase_.scope([&] { window_of(q, k, j, std::min(window_.tiles() + kTilesPerBlock, (count / kBlock - j) * kTilesPerBlock)); });
    }
    phase_.scope([&] { store_turned(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, head), first_, k.count), q.grad_q, a_.scale); });
    if (count > k.count) phase_.store(partial(head, first_ + k.count, count - k.count), transposed(q.grad_q, k.count, count - k.count));
  }

  /// The first `tiles` tiles of queries from block `key` of keys on.
  void window_of(const Queries& q, const Keys& k, const Index& key, std::int64_t tiles) {
    const Sums sums = make_sums();
    std::vector<Block> all;
    for (std::int64_t t = 0; t < tiles; t += kTilesPerBlock) {
      all.push_back({&q, &k, key + Index(t / kTilesPerBlock), key, std::min(kTilesPerBlock, tiles - t) * kTile, kBlock, false, false, false, t});
    }
    run_strips(window_strips(all), {false, true}, sums);
    add_sums(k, key, kBlock, sums);
  }

  void query_rows(const Head& head, const Index& first, std::int64_t count, const Keys& keys, bool diagonal) {
    const Queries q = load_queries(head, first, count, first_ > 0 ? count : 0);
    if (diagonal) {
      diagonal_blocks(phase_, count, keys.count, [&](const Index& i, std::int64_t queries, std::int64_t n) { diagonal_block(q, keys, i, queries, n); });
      below_diagonal(phase_, count, keys.count, kBlock, [&](const Area& area) { rectangle(q, keys, area); });
    } else {
      rectangle(q, keys, {0, count, 0, keys.count});
    }
    const bool last = first_ + reach_ >= lk_ || diagonal;
    if (last) {
      phase_.scope([&] { store_turned(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, head), first, count), q.grad_q, a_.scale); });
    } else {
      phase_.store(partial(head, first, count), transposed(q.grad_q, 0, count));
    }
  }

  Ref partial(const Head& head, const Index& first, std::int64_t count) {
    return Phase::hbm(partial_.buffer, DType::kFp32, static_cast<int>(d_), partial_.strides[2], row(count), heads_.offset(kPartial, head) + first);
  }

  /// The first `carried` rows continue what earlier phases left of their gradients.
  Queries load_queries(const Head& head, const Index& first, std::int64_t count, std::int64_t carried) {
    const std::int64_t size = isa::size_bytes(work_), tiles = ceil_div(count, kTile);
    Queries q;
    q.head = head;
    q.first = first;
    q.count = count;
    q.q = phase_.sbuf(tiles * d_ * size);
    q.q_transposed = phase_.sbuf(count * size);
    q.grad_out = phase_.sbuf(tiles * d_ * size);
    q.grad_out_transposed = phase_.sbuf(count * size);
    q.logsumexp = phase_.sbuf(tiles * 4);
    q.delta = phase_.sbuf(tiles * 4);
    q.grad_q = phase_.sbuf(count * 4);
    if (carried > 0) phase_.load(transposed(q.grad_q, 0, carried), partial(head, first, carried));
    if (carried < count) phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, transposed(q.grad_q, carried, count - carried));
    load(rows_of(a_.q, heads_.offset(kQ, head), first, count), {work_, q.q, d_, q.q_transposed});
    load(rows_of(a_.grad_out, heads_.offset(kGradOut, head), first, count), {work_, q.grad_out, d_, q.grad_out_transposed});
    phase_.scope([&] { load_logsumexp(head, first, q); });
    phase_.scope([&] { find_delta(head, first, q); });
    return q;
  }

  /// Neighbours in HBM arrive as rows and are turned onto the partitions.
  void load_logsumexp(const Head& head, const Index& first, const Queries& q) {
    const HbmView& lse = a_.logsumexp;
    const std::int64_t stride = lse.strides[2];
    const Index offset = heads_.offset(kLse, head) + first * stride;
    const auto load = [&](std::int64_t tile, std::int64_t tiles, std::int64_t rows) {
      const int p = static_cast<int>(tiles), n = static_cast<int>(rows);
      const Ref raw = phase_.at(phase_.sbuf(kTile * 4), lse.dtype, p, row(rows));
      const Ref turned = phase_.at(phase_.psum(), DType::kFp32, n, row(tiles));
      phase_.load(raw, Phase::hbm(lse.buffer, lse.dtype, p, kTile * stride, {{stride, n}}, offset + Index(tile * kTile * stride)));
      phase_.transpose(turned, raw);
      phase_.tensor_scalar(phase_.at(q.logsumexp, DType::kFp32, n, row(tiles), tile), turned, AluOp::kMultiply, -1);
    };
    const std::int64_t full = q.count / kTile, rest = q.count % kTile;
    if (full > 0) load(0, full, kTile);
    if (rest > 0) load(full, 1, rest);
  }

  void find_delta(const Head& head, const Index& first, const Queries& q) {
    const std::int64_t tiles = ceil_div(q.count, kTile);
    const Ref delta = phase_.at(q.delta, DType::kFp32, kTile, row(tiles));
    phase_.memset(delta, 0);
    const Rows rows = rows_of(a_.out, heads_.offset(kOut, head), first, q.count);
    blocks(phase_, q.count, [&](const Index& b, std::int64_t count) {
      const TileId out = phase_.sbuf(kTilesPerBlock * d_ * isa::size_bytes(rows.dtype), 3);
      const TileId product = phase_.sbuf(kTilesPerBlock * d_ * 4);
      load_block(phase_, rows, b, count, out);
      std::int64_t t = 0;
      for (const std::int64_t n : tile_sizes(count)) {
        const int p = static_cast<int>(n);
        const Ref terms = phase_.at(product, DType::kFp32, p, row(d_), t * d_);
        phase_.tensor_tensor(AluOp::kMultiply, terms, phase_.at(out, rows.dtype, p, row(d_), t * d_),
                             phase_.at(q.grad_out, work_, p, row(d_), b * (kTilesPerBlock * d_) + Index(t * d_)));
        phase_.reduce(AluOp::kAdd, phase_.at(q.delta, DType::kFp32, p, row(1), b * kTilesPerBlock + Index(t)), terms);
        ++t;
      }
    });
    phase_.tensor_scalar(delta, delta, AluOp::kMultiply, -1);
  }

  void store_key_gradients(Head head, const Keys& keys) {
    head.query = 0;
    phase_.scope([&] { store_turned(phase_, rows_of(a_.grad_k, heads_.offset(kGradK, head), first_, keys.count), keys.grad_k, a_.scale); });
    phase_.scope([&] { store_turned(phase_, rows_of(a_.grad_v, heads_.offset(kGradV, head), first_, keys.count), keys.grad_v, a_.dropout ? a_.dropout->factor : 1); });
  }

  /// `queries` query heads from `from` on of each key head.
  void several(const std::vector<Head>& heads, const std::vector<Keys>& keys, const Index& from, std::int64_t queries) {
    std::vector<Queries> rows;
    for (Head head : heads) {
      for (std::int64_t h = 0; h < queries; ++h) {
        head.query = from + Index(h);
        rows.push_back(load_queries(head, 0, lq_, 0));
      }
    }
    phase_.scope([&] {
      const std::vector<Block> all = square_blocks(rows, keys, queries);
      run_strips(make_strips(all), {false, true}, make_sums());
    });
    for (const Queries& q : rows) phase_.scope([&] { store_turned(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, q.head), 0, lq_), q.grad_q, a_.scale); });
  }

  /// The blocks on and below the diagonal, those of the same keys one after the other: they have one sum.
  std::vector<Block> square_blocks(const std::vector<Queries>& rows, const std::vector<Keys>& keys, std::int64_t queries) const {
    const auto size = [this](std::int64_t block) { return std::min(kBlock, lq_ - block * kBlock); };
    const std::int64_t side = ceil_div(lq_, kBlock);
    std::vector<Block> all;
    for (std::int64_t key = 0; key < side; ++key) {
      for (std::size_t h = 0; h < keys.size(); ++h) {
        const std::size_t first = all.size();
        for (std::int64_t query = key; query < side; ++query) {
          for (std::int64_t i = 0; i < queries; ++i) {
            all.push_back({&rows[h * static_cast<std::size_t>(queries) + static_cast<std::size_t>(i)], &keys[h], query, key, size(query), size(key), query == key});
          }
        }
        all[first].starts = all.back().ends = true;
      }
    }
    return all;
  }

  Sums make_sums() { return {phase_.psum(), phase_.psum()}; }

  void add_sums(const Keys& k, const Index& key, std::int64_t keys, const Sums& sums) {
    for (const auto& [total, sum] : {std::pair{k.grad_v, sums.grad_v}, std::pair{k.grad_k, sums.grad_k}}) {
      const Ref into = transposed(total, key * kBlock, keys);
      phase_.tensor_tensor(AluOp::kAdd, into, into, transposed(sum, 0, keys));
    }
  }

  void diagonal_block(const Queries& q, const Keys& k, const Index& i, std::int64_t queries, std::int64_t keys) {
    const Sums sums = make_sums();
    const std::int64_t visible = std::min(queries, keys);
    step({{&q, &k, i, i, queries, visible, true}}, {false, true}, sums);
    add_sums(k, i, visible, sums);
  }

  void rectangle(const Queries& q, const Keys& k, const Area& area) {
    blocks(phase_, area.keys, [&](const Index& j, std::int64_t keys) {
      const Sums sums = make_sums();
      const Index key = area.key + j;
      const std::int64_t groups = area.queries / kStepQueries, rest = area.queries % kStepQueries;
      const auto some = [&](const Index& from, std::int64_t queries, const Start& start) {
        std::vector<Block> all;
        for (std::int64_t at = 0; at < queries; at += kBlock) {
          all.push_back({&q, &k, area.query + from + Index(at / kBlock), key, std::min(kBlock, queries - at), keys, false});
        }
        step(all, start, sums);
      };
      phase_.loop(groups, [&](const Index& i) { some(i * (kStepQueries / kBlock), kStepQueries, {groups > 1, true}); });
      if (rest > 0) phase_.scope([&] { some(groups * (kStepQueries / kBlock), rest, {false, groups == 0}); });
      add_sums(k, key, keys, sums);
    });
  }

  /// The Tensor engine is two strips ahead with its scores while the other engines work on the earlier ones'.
  void step(const std::vector<Block>& all, const Start& start, const Sums& sums) {
    run_strips(make_strips(all), start, sums);
  }

  void run_strips(const std::vector<Strip>& strips, const Start& start, const Sums& sums) {
    const Buffers b = make_buffers();
    for (std::size_t turn = 0; turn < strips.size() + 3; ++turn) {
      if (turn < strips.size()) multiply_queries(strips[turn], b);
      if (turn >= 2 && turn - 2 < strips.size()) use_grad(strips[turn - 2], start, sums, b);
      if (turn >= 3 && strips[turn - 3].last) add_grad_q(strips[turn - 3], b);
      if (turn < strips.size()) find_grad(strips[turn], b);
    }
  }

  Buffers make_buffers() {
    const std::int64_t size = isa::size_bytes(work_);
    Buffers b;
    for (std::size_t i = 0; i < 2; ++i) {
      b.scores[i] = phase_.psum();
      b.grads[i] = phase_.psum();
      b.shifted[i] = phase_.sbuf(kBlock * size);
      b.turned[i] = phase_.sbuf(kTilesPerBlock * kBlock * size);
    }
    for (std::size_t i = 0; i < kInFlight; ++i) {
      b.probabilities[i] = phase_.sbuf(kBlock * size);
      b.grad[i] = phase_.sbuf(kBlock * size);
      if (a_.dropout) b.kept[i] = phase_.sbuf(kBlock * size);
    }
    b.bank = phase_.psum();
    b.grad_q = phase_.psum();
    return b;
  }

  /// On the diagonal the last tile comes first: it sees all keys, so that it can start every sum.
  static std::vector<Strip> make_strips(const std::vector<Block>& all) {
    std::vector<Strip> strips;
    for (const Block& block : all) {
      const std::vector<std::int64_t> sizes = tile_sizes(block.queries);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::size_t t = block.diagonal ? sizes.size() - 1 - i : i;
        const std::int64_t visible = static_cast<std::int64_t>(t) * kTile;  // to all of the tile's queries
        Strip s{&block, static_cast<std::int64_t>(t), static_cast<int>(sizes[t]), block.keys, 0, i == 0 && (strips.empty() || block.starts), i + 1 == sizes.size(), strips.size(), static_cast<std::size_t>(&block - all.data()) % 2, 0, {}};
        if (block.diagonal) s.keys = std::min(visible + sizes[t], block.keys), s.masked = std::max<std::int64_t>(s.keys - visible, 0);
        strips.push_back(s);
      }
    }
    return strips;
  }

  /// The tiles [first, last] of a block of keys that a tile of queries sees, `distance` tiles from the block's first key.
  struct Seen {
    std::int64_t first = 0, last = 0;
  };
  [[nodiscard]] Seen seen(std::int64_t distance) const {
    return {std::max<std::int64_t>(0, distance - window_.tiles()), std::min(distance, kTilesPerBlock - 1)};
  }

  /// Of one block of keys. Strips that together see every key once come first, so that they can start every sum.
  [[nodiscard]] std::vector<Strip> window_strips(const std::vector<Block>& all) const {
    std::vector<Strip> strips;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t tiles = all[i].queries / kTile;
      for (const bool starting : {true, false}) {
        for (std::int64_t t = tiles - 1; t >= 0; --t) {
          const std::int64_t distance = *all[i].distance + t;
          const bool starts = distance < kTilesPerBlock && (kTilesPerBlock - 1 - distance) % (window_.tiles() + 1) == 0;
          if (starts == starting) strips.push_back(window_strip(all[i], t, starts, i % 2));
        }
      }
      strips.back().last = true;
    }
    for (std::size_t i = 0; i < strips.size(); ++i) strips[i].slot = i;
    return strips;
  }

  [[nodiscard]] Strip window_strip(const Block& block, std::int64_t tile, bool starts, std::size_t parity) const {
    const std::int64_t distance = *block.distance + tile;
    const auto [first, last] = seen(distance);
    const std::int64_t keys = (last - first + 1) * kTile;
    return {&block, tile, static_cast<int>(kTile), keys, last == distance ? kTile : 0, starts, false, 0, parity, first * kTile,
            window_.edge(distance - first, keys)};
  }

  Ref probabilities_of(const Strip& t, const Buffers& b) const { return phase_.at(b.probabilities[t.slot % kInFlight], work_, t.queries, row(t.keys)); }
  Ref scores_of(const Strip& t, const Buffers& b) const { return phase_.at(b.scores[t.slot % 2], DType::kFp32, t.queries, row(t.keys)); }
  Ref grads_of(const Strip& t, const Buffers& b) const { return phase_.at(b.grads[t.slot % 2], DType::kFp32, t.queries, row(t.keys)); }
  [[nodiscard]] static Index first_query(const Strip& t) { return t.block->query * kBlock + Index(t.tile * kTile); }
  [[nodiscard]] static Index first_key(const Strip& t) { return t.block->key * kBlock + Index(t.first_key); }

  /// S and dP of one tile.
  void multiply_queries(const Strip& t, const Buffers& b) {
    const int d = static_cast<int>(d_);
    const Queries& q = *t.block->rows;
    const Keys& k = *t.block->columns;
    const auto times = [&](const Ref& to, TileId queries, TileId keys) {
      phase_.matmul(to, phase_.at(queries, array_, d, row(t.queries), first_query(t)), phase_.at(keys, array_, d, row(t.keys), first_key(t)), false);
    };
    times(scores_of(t, b), q.q_transposed, k.k_transposed);
    times(grads_of(t, b), q.grad_out_transposed, k.v_transposed);
  }

  /// P and dS of one tile.
  void find_grad(const Strip& t, const Buffers& b) {
    const Queries& q = *t.block->rows;
    const Index tile = t.block->query * kTilesPerBlock + Index(t.tile);
    const TileId bank = b.scores[t.slot % 2];
    const Ref scores = scores_of(t, b), grad = grads_of(t, b);
    if (t.masked > 0) {
      const Ref corner = phase_.at(bank, DType::kFp32, t.queries, row(t.masked), t.keys - t.masked);
      phase_.tensor_tensor(AluOp::kAdd, corner, corner, phase_.at(mask_, DType::kFp32, t.queries, row(t.masked)));
    }
    if (t.edge.keys > 0) {
      const Ref corner = phase_.at(bank, DType::kFp32, t.queries, row(t.edge.keys));
      phase_.tensor_tensor(AluOp::kAdd, corner, corner, phase_.at(edge_, DType::kFp32, t.queries, row(t.edge.keys), t.edge.column));
    }
    // Differences in the narrow dtype let Vector multiply in its fast mode.
    const Ref p = probabilities_of(t, b), difference = phase_.at(b.shifted[t.slot % 2], work_, t.queries, row(t.keys));
    phase_.activation_column(Activation::kExp, p, scores, a_.scale, phase_.at(q.logsumexp, DType::kFp32, t.queries, row(1), tile));
    const Ref delta = phase_.at(q.delta, DType::kFp32, t.queries, row(1), tile), out = phase_.at(b.grad[t.slot % kInFlight], work_, t.queries, row(t.keys));
    if (!a_.dropout) {
      phase_.activation_column(Activation::kIdentity, difference, grad, 1, delta);
      return phase_.tensor_tensor(AluOp::kMultiply, out, difference, p);
    }
    // The derivative reaches what was kept; the softmax was of all.
    const Ref kept = load_kept(q, t, b, first_query(t), first_key(t));
    phase_.tensor_tensor(AluOp::kMultiply, difference, grad, kept);
    phase_.activation_column(Activation::kIdentity, difference, difference, a_.dropout->factor, delta);
    phase_.tensor_tensor(AluOp::kMultiply, out, difference, p);
    phase_.tensor_tensor(AluOp::kMultiply, p, p, kept);
  }

  Ref load_kept(const Queries& q, const Strip& t, const Buffers& b, const Index& query, const Index& key) {
    const HbmView& view = *a_.dropout->kept;
    const Ref kept = phase_.at(b.kept[t.slot % kInFlight], work_, t.queries, row(t.keys));
    phase_.load(kept, Phase::hbm(view.buffer, view.dtype, t.queries, view.strides[2], {{view.strides[3], static_cast<std::int32_t>(t.keys)}},
                                 heads_.offset(kKept, q.head) + (q.first + query) * view.strides[2] + (key + Index(first_)) * view.strides[3]));
    return kept;
  }

  /// Adds one tile to the sums over queries, and turns its dS.
  void use_grad(const Strip& t, const Start& start, const Sums& sums, const Buffers& b) {
    const Queries& q = *t.block->rows;
    const Index natural = t.block->query * (kTilesPerBlock * d_) + Index(t.tile * d_);
    const bool overwrite_first = t.first && start.in_loop;
    const bool accumulate = !(t.first && start.here) || overwrite_first;
    const auto add = [&](TileId sum, TileId rows, TileId moving) {
      phase_.matmul(transposed(sum, t.first_key, t.keys), phase_.at(rows, array_, t.queries, row(d_), natural), phase_.at(moving, array_, t.queries, row(t.keys)),
                    accumulate, overwrite_first);
    };
    const TileId grad = b.grad[t.slot % kInFlight], turned = b.turned[t.parity];
    add(sums.grad_v, q.grad_out, b.probabilities[t.slot % kInFlight]);
    std::int64_t at = 0;
    for (const std::int64_t n : tile_sizes(t.keys)) {
      phase_.transpose(phase_.at(b.bank, turned_, static_cast<int>(n), row(t.queries), at), phase_.at(grad, work_, t.queries, row(n), at));
      at += kTile;
    }
    add(sums.grad_k, q.q, grad);
    const std::int64_t full = t.keys / kTile, rest = t.keys % kTile;
    const auto n = static_cast<std::int32_t>(full);
    if (full > 0) {
      phase_.copy(Engine::kVector, phase_.at(turned, work_, kTile, {{kBlock, n}, {1, t.queries}}, t.tile * kTile),
                  phase_.at(b.bank, turned_, kTile, {{kTile, n}, {1, t.queries}}));
    }
    if (rest > 0) {
      phase_.copy(Engine::kVector, phase_.at(turned, work_, static_cast<int>(rest), row(t.queries), full * kBlock + t.tile * kTile),
                  phase_.at(b.bank, turned_, static_cast<int>(rest), row(t.queries), full * kTile));
    }
    if (t.last && t.block->ends) add_sums(*t.block->columns, t.block->key, t.block->keys, sums);
  }

  void add_grad_q(const Strip& last, const Buffers& b) {
    const Block& block = *last.block;
    const Keys& k = *block.columns;
    partly_seen(block) ? multiply_tiles(k, last, b) : multiply_block(k, last, b);
    const Ref into = transposed(block.rows->grad_q, block.query * kBlock, block.queries);
    phase_.tensor_tensor(AluOp::kAdd, into, into, transposed(b.grad_q, 0, block.queries));
  }

  /// The block's tiles see different keys of a window.
  [[nodiscard]] bool partly_seen(const Block& block) const {
    if (!block.distance) return false;
    const std::int64_t last = *block.distance + block.queries / kTile - 1;
    return *block.distance == 0 || last > window_.tiles();
  }

  void multiply_tiles(const Keys& k, const Strip& last, const Buffers& b) {
    const Block& block = *last.block;
    for (std::int64_t tile = 0; tile < block.queries / kTile; ++tile) {
      const auto [from, to] = seen(*block.distance + tile);
      for (std::int64_t t = from; t <= to; ++t) {
        phase_.matmul(transposed(b.grad_q, tile * kTile, kTile), phase_.at(k.k, array_, kTile, row(d_), block.key * (kTilesPerBlock * d_) + Index(t * d_)),
                      phase_.at(b.turned[last.parity], array_, kTile, row(kTile), (t - from) * kBlock + tile * kTile), t > from);
      }
    }
  }

  void multiply_block(const Keys& k, const Strip& last, const Buffers& b) {
    const Block& block = *last.block;
    std::int64_t t = 0;
    for (const std::int64_t n : tile_sizes(block.keys)) {
      const std::int64_t from = block.diagonal ? t * kTile : 0;  // earlier queries do not see these keys
      const Ref keys = phase_.at(k.k, array_, static_cast<int>(n), row(d_), block.key * (kTilesPerBlock * d_) + Index(t * d_));
      phase_.matmul(transposed(b.grad_q, from, block.queries - from), keys,
                    phase_.at(b.turned[last.parity], array_, static_cast<int>(n), row(block.queries - from), t * kBlock + from), t > 0);
      ++t;
    }
  }

  const AttentionBackward& a_;
  const HbmView& partial_;
  Phase phase_;
  Heads heads_;
  std::int64_t d_, lq_, lk_;
  DType work_, array_;  ///< array_: work_ as the Tensor engine reads it
  DType turned_;        ///< gradients of scores in PSUM, turned
  std::int64_t reach_, first_;
  bool ahead_ = false;
  SlidingWindow window_;
  TileId mask_ = isa::kNone, edge_ = isa::kNone;  ///< added to scores of keys after the query and before the window
};

}  // namespace

bool lower_attention_backward(ProgramBuilder& builder, std::uint32_t kernel, const AttentionBackward& given) {
  if (given.q.sizes[3] > kTile || given.scale <= 0 || (given.dropout && given.window > 0)) return false;
  AttentionBackward a = given;
  if (!narrow_window(a.causal, a.q, a.k, a.window)) return false;
  const DType work = work_dtype({&a.q, &a.k, &a.v, &a.grad_out});
  const std::int64_t reach = reach_of(a, builder.sbuf_bytes(), work), lk = a.k.sizes[2];
  if (reach == 0) return false;
  HbmView partial = contiguous(0, DType::kFp32, {a.q.sizes[0], a.q.sizes[1], a.q.sizes[3], a.q.sizes[2]});
  if (lk > reach) partial.buffer = builder.scratch(partial.elements() * 4);
  for (const Together& together : Backward(kernel, a, partial, work, lk, 0, turned_dtype(work, builder.core())).heads_together()) {
    Phase phase = Backward(kernel, a, partial, work, lk, 0, turned_dtype(work, builder.core())).run_together(together);
    if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
  }
  for (std::int64_t first = 0; first < lk; first += reach) builder.append(Backward(kernel, a, partial, work, reach, first, turned_dtype(work, builder.core())).run());
  return true;
}

}  // namespace trellis::device
