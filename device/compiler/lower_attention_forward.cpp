#include "device/compiler/lower_attention.h"

#include <array>
#include <utility>
#include <vector>

#include "device/compiler/lower_attention_common.h"

/// Flash attention: queries on the partitions, four tiles of 128 against 512 keys per step. The running maximum m and the output, with the
/// running sum as one more column (keys' values carry a column of ones), stay in SBUF for all queries of a head.
namespace trellis::device {
namespace {

using namespace attention;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

enum View : std::size_t { kQ, kOut, kK, kV, kLse };

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const Attention& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block = kBlock * 2 * size + kTilesPerBlock * (d + 1) * (size + 4) + 5 * kTilesPerBlock * 4;
  const std::int64_t fixed = 3 * kTilesPerBlock * d * 4 + 2 * kTilesPerBlock * kBlock * size + 2 * kTilesPerBlock * d * 4 + 4096;
  return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), (sbuf - fixed) / block);
}

class Forward {
 public:
  Forward(std::uint32_t kernel, const Attention& a, DType work, std::int64_t reach)
      : a_(a), phase_(kernel), heads_(views(a), a.q.sizes[1], a.k.sizes[1]), d_(a.q.sizes[3]), lq_(a.q.sizes[2]),
        lk_(a.causal ? std::min(a.k.sizes[2], a.q.sizes[2]) : a.k.sizes[2]), work_(work), array_(array_dtype(work)), reach_(reach) {}

  Phase run() {
    if (a_.causal) mask_ = causal_mask(phase_);
    heads_.loop(phase_, [&](Head head) {
      const auto queries = [&](const Keys& resident) {
        phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
          head.query = i;
          for (std::int64_t first = 0; first < lq_; first += reach_) phase_.scope([&] { query_rows(head, first, std::min(reach_, lq_ - first), resident); });
        });
      };
      queries(lk_ <= reach_ ? load_keys(head, 0, lk_) : Keys{});
    });
    return std::move(phase_);
  }

 private:
  struct Keys {
    TileId transposed = isa::kNone;  ///< [d, keys]
    TileId values = isa::kNone;      ///< [128, key tile, d + 1]
  };
  struct Queries {
    TileId transposed = isa::kNone;               ///< [d, queries]
    TileId maximum = isa::kNone;                  ///< [128, query tile]
    std::array<TileId, kTilesPerBlock> out{};     ///< by tile within the block: [128, block, d + 1]
    std::int64_t count = 0;
    [[nodiscard]] std::int64_t blocks() const { return ceil_div(count, kBlock); }
  };
  /// One tile of queries against one block of keys.
  struct Strip {
    int tile = 0;
    int queries = 0;
    std::int64_t keys = 0, masked = 0;  ///< the last `masked` keys form the diagonal
    Ref scores, correction;
    TileId probabilities = isa::kNone, transposed = isa::kNone;
  };

  static std::vector<HbmView> views(const Attention& a) {
    std::vector<HbmView> v{a.q, a.out, a.k, a.v};
    if (a.logsumexp) v.push_back(*a.logsumexp);
    return v;
  }

  Keys load_keys(const Head& head, const Index& first, std::int64_t count) {
    const std::int64_t size = isa::size_bytes(work_), tiles = ceil_div(count, kTile);
    const Keys keys{phase_.sbuf(count * size), phase_.sbuf(tiles * (d_ + 1) * size)};
    phase_.scope([&] { load_rows(phase_, rows_of(a_.k, heads_.offset(kK, head), first, count), {work_, isa::kNone, 0, keys.transposed}); });
    phase_.scope([&] { load_rows(phase_, rows_of(a_.v, heads_.offset(kV, head), first, count), {work_, keys.values, d_ + 1, isa::kNone}); });
    phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, phase_.at(keys.values, work_, kTile, {{d_ + 1, static_cast<std::int32_t>(tiles)}}, d_)).imm0 = 1;
    return keys;
  }

  Queries load_queries(const Head& head, std::int64_t first, std::int64_t count) {
    Queries q;
    q.count = count;
    q.transposed = phase_.sbuf(count * isa::size_bytes(work_));
    q.maximum = phase_.sbuf(q.blocks() * kTilesPerBlock * 4);
    for (TileId& out : q.out) {
      out = phase_.sbuf(q.blocks() * (d_ + 1) * 4);
      phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, phase_.at(out, DType::kFp32, kTile, row(q.blocks() * (d_ + 1))));
    }
    phase_.memset(phase_.at(q.maximum, DType::kFp32, kTile, row(q.blocks() * kTilesPerBlock)), kMasked);
    phase_.scope([&] { load_rows(phase_, rows_of(a_.q, heads_.offset(kQ, head), first, count), {work_, isa::kNone, 0, q.transposed}); });
    return q;
  }

  void query_rows(const Head& head, std::int64_t first, std::int64_t count, const Keys& resident) {
    const Queries q = load_queries(head, first, count);
    const auto with_keys = [&](const Index& from, std::int64_t keys, auto body) {
      phase_.scope([&] { body(resident.transposed != isa::kNone ? resident : load_keys(head, from, keys)); });
    };
    if (a_.causal && first < lk_) {
      const std::int64_t keys = std::min(reach_, lk_ - first);
      with_keys(first, keys, [&](const Keys& k) {
        diagonal_blocks(phase_, count, keys, [&](const Index& i, std::int64_t queries, std::int64_t n) { block(q, i, queries, k, i, n, true); });
        below_diagonal(phase_, count, keys, [&](const Area& area) { rectangle(q, k, area); });
      });
    }
    const std::int64_t whole = a_.causal ? std::min(first, lk_) : lk_;  // keys that all of these queries see
    phase_.tiles(whole, reach_, [&](const Index& from, std::int64_t keys) {
      with_keys(from, keys, [&](const Keys& k) { rectangle(q, k, {0, count, 0, keys}); });
    });
    finish(head, first, q);
  }

  void rectangle(const Queries& q, const Keys& k, const Area& area) {
    blocks(phase_, area.queries, [&](const Index& i, std::int64_t queries) {
      blocks(phase_, area.keys, [&](const Index& j, std::int64_t keys) { block(q, area.query + i, queries, k, area.key + j, keys, false); });
    });
  }

  /// The Tensor engine's order hides the latencies: all scores first, then each tile's product one tile behind its transposes.
  void block(const Queries& q, const Index& qb, std::int64_t queries, const Keys& k, const Index& kb, std::int64_t keys, bool diagonal) {
    std::vector<Strip> strips = make_strips(queries, keys, diagonal);
    const Ref before = phase_.at(phase_.sbuf(kTilesPerBlock * 4), DType::kFp32, kTile, row(static_cast<std::int64_t>(strips.size())));
    phase_.copy(Engine::kVector, before, phase_.at(q.maximum, DType::kFp32, kTile, row(static_cast<std::int64_t>(strips.size())), qb * kTilesPerBlock));
    for (const Strip& s : strips) {
      phase_.matmul(s.scores, phase_.at(q.transposed, array_, static_cast<int>(d_), row(s.queries), qb * kBlock + Index(s.tile * kTile)),
                    phase_.at(k.transposed, array_, static_cast<int>(d_), row(s.keys), kb * kBlock), false);
    }
    for (Strip& s : strips) softmax(q, qb, s, phase_.at(before.tile, DType::kFp32, s.queries, row(1), s.tile));
    const std::array<TileId, 2> turned{phase_.psum(), phase_.psum()}, products{phase_.psum(), phase_.psum()};
    for (std::size_t i = 0; i < strips.size(); ++i) {
      transpose(strips[i], turned[i % 2]);
      if (i > 0) accumulate(q, qb, strips[i - 1], k, kb, products[(i - 1) % 2]);
    }
    accumulate(q, qb, strips.back(), k, kb, products[(strips.size() - 1) % 2]);
  }

  std::vector<Strip> make_strips(std::int64_t queries, std::int64_t keys, bool diagonal) {
    std::vector<Strip> strips;
    for (const std::int64_t n : tile_sizes(queries)) {
      Strip s;
      s.tile = static_cast<int>(strips.size());
      s.queries = static_cast<int>(n);
      const std::int64_t visible = s.tile * kTile;  // to all of the tile's queries
      s.keys = diagonal ? std::min(visible + n, keys) : keys;
      s.masked = diagonal ? std::max<std::int64_t>(s.keys - visible, 0) : 0;
      s.scores = phase_.at(phase_.psum(), DType::kFp32, s.queries, row(s.keys));
      s.correction = phase_.at(phase_.sbuf(4), DType::kFp32, s.queries, row(1));
      s.probabilities = phase_.sbuf(kBlock * isa::size_bytes(work_));
      s.transposed = phase_.sbuf(kBlock * isa::size_bytes(work_));
      strips.push_back(s);
    }
    return strips;
  }

  void softmax(const Queries& q, const Index& qb, Strip& s, const Ref& before) {
    if (s.masked > 0) {
      const Ref corner = phase_.at(s.scores.tile, DType::kFp32, s.queries, row(s.masked), s.keys - s.masked);
      phase_.tensor_tensor(AluOp::kAdd, corner, corner, phase_.at(mask_, DType::kFp32, s.queries, row(s.masked)));
    }
    const Ref maximum = phase_.at(q.maximum, DType::kFp32, s.queries, row(1), qb * kTilesPerBlock + Index(s.tile));
    const Ref shift = phase_.at(phase_.sbuf(4), DType::kFp32, s.queries, row(1));
    phase_.reduce(AluOp::kMax, maximum, s.scores, true);
    phase_.tensor_scalar(shift, maximum, AluOp::kMultiply, -a_.scale);
    phase_.activation_column(Activation::kExp, phase_.at(s.probabilities, work_, s.queries, row(s.keys)), s.scores, a_.scale, shift);
    phase_.activation_column(Activation::kExp, s.correction, before, a_.scale, shift);
    const Ref out = out_rows(q, qb, s);
    phase_.emit(Engine::kGpSimd, isa::Opcode::kTensorScalar, out, out, s.correction).alu = AluOp::kMultiply;
  }

  Ref out_rows(const Queries& q, const Index& qb, const Strip& s) {
    return phase_.at(q.out[static_cast<std::size_t>(s.tile)], DType::kFp32, s.queries, row(d_ + 1), qb * (d_ + 1));
  }

  void transpose(const Strip& s, TileId bank) {
    std::int64_t at = 0;
    for (const std::int64_t n : tile_sizes(s.keys)) {
      phase_.transpose(phase_.at(bank, DType::kFp32, static_cast<int>(n), row(s.queries), at),
                       phase_.at(s.probabilities, work_, s.queries, row(n), at));
      at += kTile;
    }
    // Vector also reduces: Scalar takes every other copy.
    const Engine engine = s.tile % 2 == 0 ? Engine::kVector : Engine::kScalar;
    const std::int64_t full = s.keys / kTile, rest = s.keys % kTile;
    const Dims tiles{{kTile, static_cast<std::int32_t>(full)}, {1, s.queries}};
    if (full > 0) phase_.copy(engine, phase_.at(s.transposed, work_, kTile, tiles), phase_.at(bank, DType::kFp32, kTile, tiles));
    if (rest == 0) return;
    phase_.copy(engine, phase_.at(s.transposed, work_, static_cast<int>(rest), row(s.queries), full * kTile),
                phase_.at(bank, DType::kFp32, static_cast<int>(rest), row(s.queries), full * kTile));
  }

  void accumulate(const Queries& q, const Index& qb, const Strip& s, const Keys& k, const Index& kb, TileId bank) {
    const Ref product = phase_.at(bank, DType::kFp32, s.queries, row(d_ + 1));
    std::int64_t t = 0;
    for (const std::int64_t n : tile_sizes(s.keys)) {
      phase_.matmul(product, phase_.at(s.transposed, array_, static_cast<int>(n), row(s.queries), t * kTile),
                    phase_.at(k.values, array_, static_cast<int>(n), row(d_ + 1), kb * (kTilesPerBlock * (d_ + 1)) + Index(t * (d_ + 1))), t > 0);
      ++t;
    }
    const Ref out = out_rows(q, qb, s);
    phase_.tensor_tensor(AluOp::kAdd, out, out, product);
  }

  void finish(const Head& head, std::int64_t first, const Queries& q) {
    const std::int64_t columns = q.blocks() * kTilesPerBlock;
    const auto n = static_cast<std::int32_t>(q.blocks());
    const Ref sums = phase_.at(phase_.sbuf(columns * 4), DType::kFp32, kTile, row(columns));
    for (std::int64_t i = 0; i < kTilesPerBlock; ++i) {
      phase_.copy(Engine::kVector, phase_.at(sums.tile, DType::kFp32, kTile, {{kTilesPerBlock, n}}, i),
                  phase_.at(q.out[static_cast<std::size_t>(i)], DType::kFp32, kTile, {{d_ + 1, n}}, d_));
    }
    if (a_.logsumexp) store_logsumexp(head, first, q, sums);
    auto& reciprocal = phase_.emit(Engine::kVector, isa::Opcode::kActivation, sums, sums);
    reciprocal.activation = Activation::kReciprocal;
    reciprocal.imm0 = 1;
    blocks(phase_, q.count, [&](const Index& b, std::int64_t count) {
      const TileId out = phase_.sbuf(kTilesPerBlock * d_ * isa::size_bytes(a_.out.dtype), 2);
      std::int64_t i = 0;
      for (const std::int64_t rows : tile_sizes(count)) {
        const int p = static_cast<int>(rows);
        phase_.tensor_column(phase_.at(out, a_.out.dtype, p, row(d_), i * d_),
                             phase_.at(q.out[static_cast<std::size_t>(i)], DType::kFp32, p, row(d_), b * (d_ + 1)), AluOp::kMultiply,
                             phase_.at(sums.tile, DType::kFp32, p, row(1), b * kTilesPerBlock + Index(i)));
        ++i;
      }
      store_block(phase_, rows_of(a_.out, heads_.offset(kOut, head), first, q.count), b, count, out);
    });
  }

  /// Turned so that neighbours in HBM are neighbours in a transfer's row.
  void store_logsumexp(const Head& head, std::int64_t first, const Queries& q, const Ref& sums) {
    const HbmView& lse = *a_.logsumexp;
    const std::int64_t columns = q.blocks() * kTilesPerBlock, stride = lse.strides[2];
    const Ref logs = phase_.at(phase_.sbuf(columns * 4), DType::kFp32, kTile, row(columns));
    const Ref maximum = phase_.at(q.maximum, DType::kFp32, kTile, row(columns));
    phase_.activation(Activation::kLog, logs, sums);
    phase_.tensor_scalar(maximum, maximum, AluOp::kMultiply, a_.scale);
    phase_.tensor_tensor(AluOp::kAdd, logs, logs, maximum);
    const Index offset = heads_.offset(kLse, head) + Index(first * stride);
    const auto store = [&](std::int64_t tile, std::int64_t tiles, std::int64_t rows) {
      const int p = static_cast<int>(tiles);
      const Ref turned = phase_.at(phase_.psum(), DType::kFp32, p, row(rows));
      const Ref out = phase_.at(phase_.sbuf(kTile * 4), lse.dtype, p, row(rows));
      phase_.transpose(turned, phase_.at(logs.tile, DType::kFp32, static_cast<int>(rows), row(tiles), tile));
      phase_.copy(Engine::kScalar, out, turned);
      const Dims line{{stride, static_cast<std::int32_t>(rows)}};
      phase_.store(Phase::hbm(lse.buffer, lse.dtype, p, kTile * stride, line, offset + Index(tile * kTile * stride)), out);
    };
    const std::int64_t full = q.count / kTile, rest = q.count % kTile;
    if (full > 0) store(0, full, kTile);
    if (rest > 0) store(full, 1, rest);
  }

  const Attention& a_;
  Phase phase_;
  Heads heads_;
  std::int64_t d_, lq_, lk_;
  DType work_, array_;  ///< array_: work_ as the Tensor engine reads it
  std::int64_t reach_;
  TileId mask_ = isa::kNone;
};

}  // namespace

bool lower_attention(ProgramBuilder& builder, std::uint32_t kernel, const Attention& attention) {
  if (attention.q.sizes[3] > kTile || attention.scale <= 0) return false;
  const DType work = work_dtype({&attention.q, &attention.k, &attention.v});
  const std::int64_t reach = reach_of(attention, builder.sbuf_bytes(), work);
  if (reach == 0) return false;
  builder.append(Forward(kernel, attention, work, reach).run());
  return true;
}

}  // namespace trellis::device
