#include "device/compiler/lower_attention.h"

#include <array>
#include <utility>
#include <vector>

#include "device/compiler/lower_attention_common.h"

/// With P = exp(scale · S − logsumexp), delta = rowsum(dO ∘ O) and dS = P ∘ (dP − delta):
///   dVᵀ += dOᵀ P,  dKᵀ += scale · Qᵀ dS,  dQᵀ += scale · Kᵀ dSᵀ.
/// Gradients are kept transposed, [d, rows]: then the wide operand of every product is the moving one, and only dS must be turned. A phase
/// holds a range of keys with their gradients; dQ passes from phase to phase through HBM.
namespace trellis::device {
namespace {

using namespace attention;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

enum View : std::size_t { kQ, kGradQ, kGradOut, kOut, kLse, kPartial, kK, kV, kGradK, kGradV };

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const AttentionBackward& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block = kBlock * 4 * size + 3 * kTilesPerBlock * d * size + 3 * kBlock * 4 + 2 * kTilesPerBlock * 4;
  const std::int64_t fixed = 4 * kTilesPerBlock * d * 4 + 3 * kTilesPerBlock * kBlock * size + 2 * kBlock * 4 + 4096;
  return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), (sbuf - fixed) / block);
}

class Backward {
 public:
  /// The phase of keys [first, first + count). `partial` [batch, heads, d, lq]: dQᵀ on its way.
  Backward(std::uint32_t kernel, const AttentionBackward& a, const HbmView& partial, DType work, std::int64_t reach, std::int64_t first)
      : a_(a), partial_(partial), phase_(kernel),
        heads_({a.q, a.grad_q, a.grad_out, a.out, a.logsumexp, partial, a.k, a.v, a.grad_k, a.grad_v}, a.q.sizes[1], a.k.sizes[1]),
        d_(a.q.sizes[3]), lq_(a.q.sizes[2]), lk_(a.k.sizes[2]), work_(work), array_(array_dtype(work)), reach_(reach), first_(first) {}

  Phase run() {
    if (a_.causal) mask_ = causal_mask(phase_);
    heads_.loop(phase_, [&](Head head) {
      const Keys keys = load_keys(head);
      phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
        head.query = i;
        visit_queries(head, keys);
      });
      head.query = 0;
      phase_.scope([&] { store_transposed(rows_of(a_.grad_k, heads_.offset(kGradK, head), first_, keys.count), keys.grad_k, a_.scale); });
      phase_.scope([&] { store_transposed(rows_of(a_.grad_v, heads_.offset(kGradV, head), first_, keys.count), keys.grad_v, 1); });
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
    std::int64_t count = 0;
    TileId q = isa::kNone, q_transposed = isa::kNone, grad_out = isa::kNone, grad_out_transposed = isa::kNone;
    TileId logsumexp = isa::kNone, delta = isa::kNone;  ///< negated; [128, query tile]
    TileId grad_q = isa::kNone;                         ///< transposed, fp32
  };
  /// The sums over queries of one block of keys, in PSUM.
  struct Sums {
    TileId grad_k = isa::kNone, grad_v = isa::kNone;
  };
  /// What is common to the tiles of one block of queries against one block of keys.
  struct Step {
    Index query, key;  ///< blocks
    std::int64_t queries = 0, keys = 0;
    bool diagonal = false;
    bool in_loop = false;  ///< over queries, whose first turn starts the sums
    bool starts = false;   ///< no loop, and the sums start here
  };
  /// One tile of queries against one block of keys.
  struct Strip {
    std::int64_t tile = 0;
    int queries = 0;
    std::int64_t keys = 0, masked = 0;  ///< the last `masked` keys form the diagonal
    bool first = false;                 ///< of the step
    TileId probabilities = isa::kNone, grad = isa::kNone;
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
    phase_.scope([&] { load_rows(phase_, rows_of(a_.k, heads_.offset(kK, head), first_, keys.count), {work_, keys.k, d_, keys.k_transposed}); });
    phase_.scope([&] { load_rows(phase_, rows_of(a_.v, heads_.offset(kV, head), first_, keys.count), {work_, isa::kNone, 0, keys.v_transposed}); });
    return keys;
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

  void query_rows(const Head& head, const Index& first, std::int64_t count, const Keys& keys, bool diagonal) {
    const Queries q = load_queries(head, first, count);
    if (diagonal) {
      diagonal_blocks(phase_, count, keys.count, [&](const Index& i, std::int64_t queries, std::int64_t n) { diagonal_block(q, keys, i, queries, n); });
      below_diagonal(phase_, count, keys.count, [&](const Area& area) { rectangle(q, keys, area); });
    } else {
      rectangle(q, keys, {0, count, 0, keys.count});
    }
    const bool last = first_ + reach_ >= lk_ || diagonal;
    if (last) {
      phase_.scope([&] { store_transposed(rows_of(a_.grad_q, heads_.offset(kGradQ, head), first, count), q.grad_q, a_.scale); });
    } else {
      phase_.store(partial(head, first, count), transposed(q.grad_q, 0, count));
    }
  }

  Ref partial(const Head& head, const Index& first, std::int64_t count) {
    return Phase::hbm(partial_.buffer, DType::kFp32, static_cast<int>(d_), partial_.strides[2], row(count), heads_.offset(kPartial, head) + first);
  }

  Queries load_queries(const Head& head, const Index& first, std::int64_t count) {
    const std::int64_t size = isa::size_bytes(work_), tiles = ceil_div(count, kTile);
    Queries q;
    q.count = count;
    q.q = phase_.sbuf(tiles * d_ * size);
    q.q_transposed = phase_.sbuf(count * size);
    q.grad_out = phase_.sbuf(tiles * d_ * size);
    q.grad_out_transposed = phase_.sbuf(count * size);
    q.logsumexp = phase_.sbuf(tiles * 4);
    q.delta = phase_.sbuf(tiles * 4);
    if (first_ == 0) {
      q.grad_q = zeros(count);
    } else {
      q.grad_q = phase_.sbuf(count * 4);
      phase_.load(transposed(q.grad_q, 0, count), partial(head, first, count));
    }
    phase_.scope([&] { load_rows(phase_, rows_of(a_.q, heads_.offset(kQ, head), first, count), {work_, q.q, d_, q.q_transposed}); });
    phase_.scope([&] { load_rows(phase_, rows_of(a_.grad_out, heads_.offset(kGradOut, head), first, count), {work_, q.grad_out, d_, q.grad_out_transposed}); });
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
    step(q, k, {i, i, queries, visible, true, false, true}, sums);
    add_sums(k, i, visible, sums);
  }

  void rectangle(const Queries& q, const Keys& k, const Area& area) {
    blocks(phase_, area.keys, [&](const Index& j, std::int64_t keys) {
      const Sums sums = make_sums();
      const Index key = area.key + j;
      const std::int64_t full = area.queries / kBlock, rest = area.queries % kBlock;
      phase_.loop(full, [&](const Index& i) { step(q, k, {area.query + i, key, kBlock, keys, false, full > 1, true}, sums); });
      if (rest > 0) phase_.scope([&] { step(q, k, {area.query + Index(full), key, rest, keys, false, false, full == 0}, sums); });
      add_sums(k, key, keys, sums);
    });
  }

  /// The Tensor engine is one tile ahead with its scores while the other engines work on the last one's.
  void step(const Queries& q, const Keys& k, const Step& s, const Sums& sums) {
    const std::vector<Strip> strips = make_strips(s);
    const std::array<TileId, 2> scores{phase_.psum(), phase_.psum()}, grads{phase_.psum(), phase_.psum()};
    const std::array<TileId, 2> shifted{phase_.sbuf(kBlock * 4), phase_.sbuf(kBlock * 4)};
    const TileId bank = phase_.psum(), turned = phase_.sbuf(kTilesPerBlock * kBlock * isa::size_bytes(work_));
    for (std::size_t i = 0; i < strips.size(); ++i) {
      find_grad(q, k, s, strips[i], scores[i % 2], grads[i % 2], shifted[i % 2]);
      if (i > 0) use_grad(q, s, strips[i - 1], sums, bank, turned);
    }
    use_grad(q, s, strips.back(), sums, bank, turned);
    add_grad_q(q, k, s, turned);
  }

  /// On the diagonal the last tile comes first: it sees all keys, so that it can start every sum.
  std::vector<Strip> make_strips(const Step& s) {
    std::vector<Strip> strips;
    for (const std::int64_t n : tile_sizes(s.queries)) {
      Strip strip;
      strip.tile = static_cast<std::int64_t>(strips.size());
      strip.queries = static_cast<int>(n);
      const std::int64_t visible = strip.tile * kTile;  // to all of the tile's queries
      strip.keys = s.diagonal ? std::min(visible + n, s.keys) : s.keys;
      strip.masked = s.diagonal ? std::max<std::int64_t>(strip.keys - visible, 0) : 0;
      strip.probabilities = phase_.sbuf(kBlock * isa::size_bytes(work_));
      strip.grad = phase_.sbuf(kBlock * isa::size_bytes(work_));
      strips.push_back(strip);
    }
    if (s.diagonal) std::reverse(strips.begin(), strips.end());
    strips.front().first = true;
    return strips;
  }

  /// P and dS of one tile.
  void find_grad(const Queries& q, const Keys& k, const Step& s, const Strip& t, TileId scores_bank, TileId grad_bank, TileId shifted) {
    const int d = static_cast<int>(d_);
    const Index query = s.query * kBlock + Index(t.tile * kTile), key = s.key * kBlock, tile = s.query * kTilesPerBlock + Index(t.tile);
    const Ref scores = phase_.at(scores_bank, DType::kFp32, t.queries, row(t.keys)), grad = phase_.at(grad_bank, DType::kFp32, t.queries, row(t.keys));
    phase_.matmul(scores, phase_.at(q.q_transposed, array_, d, row(t.queries), query), phase_.at(k.k_transposed, array_, d, row(t.keys), key), false);
    phase_.matmul(grad, phase_.at(q.grad_out_transposed, array_, d, row(t.queries), query), phase_.at(k.v_transposed, array_, d, row(t.keys), key), false);
    if (t.masked > 0) {
      const Ref corner = phase_.at(scores_bank, DType::kFp32, t.queries, row(t.masked), t.keys - t.masked);
      phase_.tensor_tensor(AluOp::kAdd, corner, corner, phase_.at(mask_, DType::kFp32, t.queries, row(t.masked)));
    }
    const Ref p = phase_.at(t.probabilities, work_, t.queries, row(t.keys)), difference = phase_.at(shifted, DType::kFp32, t.queries, row(t.keys));
    phase_.activation_column(Activation::kExp, p, scores, a_.scale, phase_.at(q.logsumexp, DType::kFp32, t.queries, row(1), tile));
    phase_.activation_column(Activation::kIdentity, difference, grad, 1, phase_.at(q.delta, DType::kFp32, t.queries, row(1), tile));
    phase_.tensor_tensor(AluOp::kMultiply, phase_.at(t.grad, work_, t.queries, row(t.keys)), difference, p);
  }

  /// Adds one tile to the sums over queries, and turns its dS.
  void use_grad(const Queries& q, const Step& s, const Strip& t, const Sums& sums, TileId bank, TileId turned) {
    const Index natural = s.query * (kTilesPerBlock * d_) + Index(t.tile * d_);
    const bool overwrite_first = t.first && s.in_loop;
    const bool accumulate = !(t.first && s.starts) || overwrite_first;
    const auto add = [&](TileId sum, TileId rows, TileId moving) {
      phase_.matmul(transposed(sum, 0, t.keys), phase_.at(rows, array_, t.queries, row(d_), natural), phase_.at(moving, array_, t.queries, row(t.keys)),
                    accumulate, overwrite_first);
    };
    add(sums.grad_v, q.grad_out, t.probabilities);
    std::int64_t at = 0;
    for (const std::int64_t n : tile_sizes(t.keys)) {
      phase_.transpose(phase_.at(bank, DType::kFp32, static_cast<int>(n), row(t.queries), at), phase_.at(t.grad, work_, t.queries, row(n), at));
      at += kTile;
    }
    add(sums.grad_k, q.q, t.grad);
    const std::int64_t full = t.keys / kTile, rest = t.keys % kTile;
    const auto n = static_cast<std::int32_t>(full);
    if (full > 0) {
      phase_.copy(Engine::kVector, phase_.at(turned, work_, kTile, {{kBlock, n}, {1, t.queries}}, t.tile * kTile),
                  phase_.at(bank, DType::kFp32, kTile, {{kTile, n}, {1, t.queries}}));
    }
    if (rest > 0) {
      phase_.copy(Engine::kVector, phase_.at(turned, work_, static_cast<int>(rest), row(t.queries), full * kBlock + t.tile * kTile),
                  phase_.at(bank, DType::kFp32, static_cast<int>(rest), row(t.queries), full * kTile));
    }
  }

  void add_grad_q(const Queries& q, const Keys& k, const Step& s, TileId turned) {
    const TileId sum = phase_.psum();
    std::int64_t t = 0;
    for (const std::int64_t n : tile_sizes(s.keys)) {
      const std::int64_t from = s.diagonal ? t * kTile : 0;  // earlier queries do not see these keys
      const Ref keys = phase_.at(k.k, array_, static_cast<int>(n), row(d_), s.key * (kTilesPerBlock * d_) + Index(t * d_));
      phase_.matmul(transposed(sum, from, s.queries - from), keys,
                    phase_.at(turned, array_, static_cast<int>(n), row(s.queries - from), t * kBlock + from), t > 0);
      ++t;
    }
    const Ref into = transposed(q.grad_q, s.query * kBlock, s.queries);
    phase_.tensor_tensor(AluOp::kAdd, into, into, transposed(sum, 0, s.queries));
  }

  /// scale · fromᵀ to HBM.
  void store_transposed(const Rows& rows, TileId from, double scale) {
    blocks(phase_, rows.count, [&](const Index& b, std::int64_t count) {
      const TileId bank = phase_.psum(2), out = phase_.sbuf(kTilesPerBlock * d_ * isa::size_bytes(rows.dtype), 2);
      std::int64_t t = 0;
      for (const std::int64_t n : tile_sizes(count)) {
        const Ref turned = phase_.at(bank, DType::kFp32, static_cast<int>(n), row(d_), t * d_);
        phase_.transpose(turned, transposed(from, b * kBlock + Index(t * kTile), n));
        phase_.activation(Activation::kIdentity, phase_.at(out, rows.dtype, static_cast<int>(n), row(d_), t * d_), turned, scale);
        ++t;
      }
      store_block(phase_, rows, b, count, out);
    });
  }

  const AttentionBackward& a_;
  const HbmView& partial_;
  Phase phase_;
  Heads heads_;
  std::int64_t d_, lq_, lk_;
  DType work_, array_;  ///< array_: work_ as the Tensor engine reads it
  std::int64_t reach_, first_;
  TileId mask_ = isa::kNone;
};

}  // namespace

bool lower_attention_backward(ProgramBuilder& builder, std::uint32_t kernel, const AttentionBackward& a) {
  if (a.q.sizes[3] > kTile || a.scale <= 0) return false;
  const DType work = work_dtype({&a.q, &a.k, &a.v, &a.grad_out});
  const std::int64_t reach = reach_of(a, builder.sbuf_bytes(), work), lk = a.k.sizes[2];
  if (reach == 0) return false;
  HbmView partial = contiguous(0, DType::kFp32, {a.q.sizes[0], a.q.sizes[1], a.q.sizes[3], a.q.sizes[2]});
  if (lk > reach) partial.buffer = builder.scratch(partial.elements() * 4);
  for (std::int64_t first = 0; first < lk; first += reach) builder.append(Backward(kernel, a, partial, work, reach, first).run());
  return true;
}

}  // namespace trellis::device
