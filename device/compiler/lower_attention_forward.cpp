#include "device/compiler/lower_attention.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "device/compiler/lower_attention_common.h"

/// Flash attention: queries on the partitions, tiles of 128 against 512 keys at a time ("strips"), several strips in flight. Queries come on chip times −scale, so that the exponent is
/// minimum − score with no further step. The running minimum and the output, with the running sum as one more column (keys' values carry a
/// column of ones), stay in SBUF for all queries of a head.
namespace trellis::device {
namespace {

using namespace attention;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;

enum View : std::size_t { kQ, kOut, kK, kV, kKept, kLse };
constexpr std::int64_t kStepKeys = 8 * kBlock;

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const Attention& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block = kBlock * 2 * size + kTilesPerBlock * (d + 1) * (size + 4) + 5 * kTilesPerBlock * 4;
  const std::int64_t fixed = 3 * kTilesPerBlock * d * 4 + 2 * kTilesPerBlock * kBlock * size + 2 * kTilesPerBlock * d * 4 + 6144 + (a.dropout ? 2 * kBlock * (4 + size) : 0);
  return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), (sbuf - fixed) / block);
}

class Forward {
 public:
  Forward(std::uint32_t kernel, const Attention& a, DType work, std::int64_t reach, DType turned)
      : a_(a), phase_(kernel), heads_(views(a), a.q.sizes[1], a.k.sizes[1]), d_(a.q.sizes[3]), lq_(a.q.sizes[2]),
        lk_(a.causal ? std::min(a.k.sizes[2], a.q.sizes[2]) : a.k.sizes[2]), work_(work), array_(array_dtype(work)), turned_(turned), reach_(reach), window_(a.window) {}

  [[nodiscard]] std::vector<Together> heads_together() const { return attention::heads_together(heads_, a_.causal, a_.q.sizes[2], a_.k.sizes[2]); }

  /// With a window: `blocks` of queries slide along it at a time; `apart`: the first ones have memory of their own, so that heads overlap too.
  Phase run_window(std::int64_t blocks, bool apart) {
    together_ = blocks;
    ahead_ = true;
    apart_ = apart;
    mask_ = causal_mask(phase_);
    edge_ = window_.edge_mask(phase_);
    heads_.loop(phase_, [&](const Head& head) { slide(head); });
    return std::move(phase_);
  }

  Phase run_together(const Together& together) {
    ahead_ = true;
    mask_ = causal_mask(phase_);
    heads_.loop_together(phase_, together.key_heads, [&](const std::vector<Head>& heads) { several(heads, together.queries); });
    return std::move(phase_);
  }

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
    Index first;                     ///< of all keys
  };
  struct Queries {
    Head head;
    Index first;                                  ///< of all queries
    TileId transposed = isa::kNone;               ///< [d, queries]
    // By tile within the block, so that neighbouring strips share nothing:
    std::array<TileId, kTilesPerBlock> minimum{};  ///< [128, block]
    std::array<TileId, kTilesPerBlock> out{};      ///< [128, block, d + 1]
    std::int64_t count = 0;
    [[nodiscard]] std::int64_t blocks() const { return ceil_div(count, kBlock); }
  };
  /// Up to four tiles of queries against one block of keys.
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
    std::int64_t first_key = 0;         ///< from the start of its block of keys; a multiple of a tile
    SlidingWindow::Edge edge;
    std::size_t slot = 0;               ///< which of the buffers below it uses
  };
  static constexpr std::size_t kInFlight = 4;
  /// What the strips in flight work in.
  struct Buffers {
    std::array<TileId, kInFlight> scores{}, probabilities{}, transposed{}, correction{};
    std::array<TileId, kInFlight> before{};
    std::array<TileId, 2> turned{}, products{};
    // Dropout: random numbers, what they keep, and sums of what was there before, until the strip's last stage.
    std::array<TileId, 2> drawn{}, kept{};
    std::array<TileId, 8> sums{};
  };

  static std::vector<HbmView> views(const Attention& a) {
    std::vector<HbmView> v{a.q, a.out, a.k, a.v, a.dropout && a.dropout->kept ? *a.dropout->kept : a.q};
    if (a.logsumexp) v.push_back(*a.logsumexp);
    return v;
  }

  /// Of buffers that the next chunk of a window fills while this one is computed.
  [[nodiscard]] int depth() const { return a_.window > 0 ? 2 : 1; }
  void load(const Rows& rows, const RowTiles& into) {
    if (ahead_) return load_rows_ahead(phase_, rows, into);
    phase_.scope([&] { load_rows(phase_, rows, into); });
  }
  template <typename Body>
  void each_block(std::int64_t count, Body body) {
    if (a_.window == 0) return blocks(phase_, count, body);
    for (std::int64_t b = 0; b < count / kBlock; ++b) body(Index(b), kBlock);
  }

  Keys load_keys(const Head& head, const Index& first, std::int64_t count) {
    const std::int64_t size = isa::size_bytes(work_), tiles = ceil_div(count, kTile);
    const Keys keys{phase_.sbuf(count * size, depth()), phase_.sbuf(tiles * (d_ + 1) * size, depth()), first};
    load(rows_of(a_.k, heads_.offset(kK, head), first, count), {work_, isa::kNone, 0, keys.transposed});
    load(rows_of(a_.v, heads_.offset(kV, head), first, count), {work_, keys.values, d_ + 1, isa::kNone});
    phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, phase_.at(keys.values, work_, kTile, {{d_ + 1, static_cast<std::int32_t>(tiles)}}, d_)).imm0 = 1;
    return keys;
  }

  Queries load_queries(const Head& head, const Index& first, std::int64_t count) {
    Queries q;
    q.head = head;
    q.first = first;
    q.count = count;
    q.transposed = phase_.sbuf(count * isa::size_bytes(work_), depth());
    for (TileId& out : q.out) {
      out = phase_.sbuf(q.blocks() * (d_ + 1) * 4, depth());
      phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, phase_.at(out, DType::kFp32, kTile, row(q.blocks() * (d_ + 1))));
    }
    for (TileId& minimum : q.minimum) {
      minimum = phase_.sbuf(q.blocks() * 4, depth());
      phase_.memset(phase_.at(minimum, DType::kFp32, kTile, row(q.blocks())), -kMasked);
    }
    load(rows_of(a_.q, heads_.offset(kQ, head), first, count), {work_, isa::kNone, 0, q.transposed, -a_.scale});
    return q;
  }

  /// All of a short sequence: the strips of several heads make one step.
  void several(const std::vector<Head>& heads, std::int64_t queries) {
    std::vector<Keys> keys;
    for (const Head& head : heads) keys.push_back(load_keys(head, 0, lk_));
    phase_.loop(heads_.queries_per_key() / queries, [&](const Index& i) {
      std::vector<Queries> rows;
      for (Head head : heads) {
        for (std::int64_t h = 0; h < queries; ++h) {
          head.query = i * queries + Index(h);
          rows.push_back(load_queries(head, 0, lq_));
        }
      }
      phase_.scope([&] { step(make_strips(square_blocks(rows, keys, queries))); });
      for (const Queries& q : rows) phase_.scope([&] { finish(q.head, 0, q); });
    });
  }

  /// The blocks on and below the diagonal; heads in turn, so that strips of one tile of queries lie apart.
  std::vector<Block> square_blocks(const std::vector<Queries>& rows, const std::vector<Keys>& keys, std::int64_t queries) const {
    const auto size = [this](std::int64_t block) { return std::min(kBlock, lq_ - block * kBlock); };
    std::vector<Block> all;
    for (std::int64_t query = 0; query < ceil_div(lq_, kBlock); ++query) {
      for (std::int64_t key = 0; key <= query; ++key) {
        for (std::size_t i = 0; i < rows.size(); ++i) all.push_back({&rows[i], &keys[i / static_cast<std::size_t>(queries)], query, key, size(query), size(key), key == query});
      }
    }
    return all;
  }

  void query_rows(const Head& head, std::int64_t first, std::int64_t count, const Keys& resident) {
    const Queries q = load_queries(head, first, count);
    const auto with_keys = [&](const Index& from, std::int64_t keys, auto body) {
      phase_.scope([&] { body(resident.transposed != isa::kNone ? resident : load_keys(head, from, keys)); });
    };
    if (a_.causal && first < lk_) {
      const std::int64_t keys = std::min(reach_, lk_ - first);
      with_keys(first, keys, [&](const Keys& k) { triangle(q, k, count, keys); });
    }
    const std::int64_t whole = a_.causal ? std::min(first, lk_) : lk_;  // keys that all of these queries see
    phase_.tiles(whole, reach_, [&](const Index& from, std::int64_t keys) {
      with_keys(from, keys, [&](const Keys& k) { rectangle(q, k, {0, count, 0, keys}); });
    });
    finish(head, first, q);
  }

  /// On and below the diagonal. Two blocks on it and the one below them make one step where the sizes are even.
  void triangle(const Queries& q, const Keys& k, std::int64_t queries, std::int64_t keys) {
    const bool pairs = queries == keys && keys % (2 * kBlock) == 0;
    if (pairs) {
      phase_.loop(keys / (2 * kBlock), [&](const Index& i) {
        const Index upper = i * 2, lower = i * 2 + Index(1);
        step(make_strips({{&q, &k, upper, upper, kBlock, kBlock, true}, {&q, &k, lower, lower, kBlock, kBlock, true}, {&q, &k, lower, upper, kBlock, kBlock, false}}));
      });
    } else {
      diagonal_blocks(phase_, queries, keys, [&](const Index& i, std::int64_t rows, std::int64_t columns) { step(make_strips({{&q, &k, i, i, rows, columns, true}})); });
    }
    below_diagonal(phase_, queries, keys, pairs ? 2 * kBlock : kBlock, [&](const Area& area) { rectangle(q, k, area); });
  }

  /// Along a sliding window: a few blocks of queries at a time with the keys that they see, so that the next ones arrive and the last ones leave
  /// while these are computed. Straight code, so that every buffer is a ring.
  void slide(const Head& head) {
    const std::int64_t all = lq_ / kBlock, full = all / together_, started = std::min(ceil_div(window_.tiles(), together_ * kTilesPerBlock), full);
    const auto before = [&](std::int64_t block) { return std::min(window_.tiles(), block * kTilesPerBlock); };
    for (std::int64_t i = 0; i < started; ++i) {
      const auto first = [&] { chunk(head, i * together_, together_, before(i * together_)); };
      apart_ ? first() : phase_.scope(first);
    }
    phase_.loop(full - started, [&](const Index& i) { chunk(head, i * together_ + Index(started * together_), together_, window_.tiles()); });
    if (all % together_ != 0) phase_.scope([&] { chunk(head, full * together_, all % together_, before(full * together_)); });
  }

  /// Blocks of queries from `first` on, with `before` tiles of keys before them.
  void chunk(Head head, const Index& first, std::int64_t blocks, std::int64_t before) {
    const Index row = first * kBlock;
    const Keys keys = load_keys(head, row + Index(-before * kTile), before * kTile + blocks * kBlock);
    phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
      head.query = i;
      const Queries q = load_queries(head, row, blocks * kBlock);
      std::vector<Strip> strips;
      const std::int64_t pieces = ceil_div(window_.tiles() + 1, kTilesPerBlock);
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::vector<Strip> more = window_strips(q, keys, block, before * kTile, static_cast<std::size_t>(block * pieces) * kInFlight);
        strips.insert(strips.end(), more.begin(), more.end());
      }
      phase_.scope([&] { step(strips); });
      // Beside the step's buffers: the next ones need not wait for these stores.
      phase_.reserve(kInFlight * (2 * kBlock * isa::size_bytes(work_) + 256));
      finish(head, row, q);
    });
  }

  /// Of one block of queries of a chunk with `before` keys before it: a strip per tile for every 512 keys, from the window's edge on.
  std::vector<Strip> window_strips(const Queries& q, const Keys& k, std::int64_t block, std::int64_t before, std::size_t slot) const {
    std::vector<Strip> strips;
    for (std::int64_t t = 0; t < kTilesPerBlock; ++t) {
      const std::int64_t edge = (t - window_.tiles()) * kTile, end = (t + 1) * kTile;
      std::size_t piece = 0;
      for (std::int64_t from = std::max(edge, -before - block * kBlock); from < end; from += kBlock, ++piece) {
        Strip s{&q, &k, Index(block), Index(block), static_cast<int>(t), static_cast<int>(kTile), std::min(kBlock, end - from), 0, before + from, {}, slot + piece * kInFlight + static_cast<std::size_t>(t)};
        if (from + s.keys == end) s.masked = kTile;
        if (piece == 0) s.edge = window_.edge(t - from / kTile, s.keys);
        strips.push_back(s);
      }
    }
    std::sort(strips.begin(), strips.end(), [](const Strip& x, const Strip& y) { return x.slot < y.slot; });
    return strips;
  }

  /// Up to eight blocks of keys per step: every step empties the pipeline once.
  void rectangle(const Queries& q, const Keys& k, const Area& area) {
    blocks(phase_, area.queries, [&](const Index& i, std::int64_t queries) {
      const auto some = [&](const Index& from, std::int64_t keys) {
        std::vector<Block> all;
        for (std::int64_t at = 0; at < keys; at += kBlock) {
          all.push_back({&q, &k, area.query + i, area.key + from + Index(at / kBlock), queries, std::min(kBlock, keys - at), false});
        }
        step(make_strips(all));
      };
      phase_.loop(area.keys / kStepKeys, [&](const Index& j) { some(j * (kStepKeys / kBlock), kStepKeys); });
      if (area.keys % kStepKeys != 0) phase_.scope([&] { some(area.keys / kStepKeys * (kStepKeys / kBlock), area.keys % kStepKeys); });
    });
  }

  /// Strips follow each other through the engines, a stage per turn, so that none waits for another's result:
  ///   0 Tensor scores   1 Vector minimum, Scalar exponential   3 Tensor transposes   4 copy, GpSimd correction   6 Tensor product   7 Vector sum
  void step(const std::vector<Strip>& strips) {
    const Buffers b = make_buffers();
    std::vector<const Strip*> at(strips.back().slot + 1, nullptr);
    for (const Strip& s : strips) at[s.slot] = &s;
    const auto stage = [&](std::size_t turn, std::size_t late, auto body) {
      if (turn >= late && turn - late < at.size() && at[turn - late] != nullptr) body(*at[turn - late]);
    };
    for (std::size_t turn = 0; turn < at.size() + 7; ++turn) {
      stage(turn, 7, [&](const Strip& s) { add(s, b); });
      stage(turn, 6, [&](const Strip& s) { multiply(s, b); });
      stage(turn, 4, [&](const Strip& s) { copy(s, b); });
      stage(turn, 3, [&](const Strip& s) { transpose(s, b); });
      stage(turn, 0, [&](const Strip& s) {
        phase_.copy(Engine::kGpSimd, before_of(s, b), minimum_of(s));
        if (a_.dropout) phase_.emit(Engine::kGpSimd, isa::Opcode::kRandom, drawn_of(s, b));
        scores(s, b);
      });
      stage(turn, 1, [&](const Strip& s) {
        softmax(s, b);
        if (a_.dropout) drop(s, b);
      });
    }
  }

  Buffers make_buffers() {
    Buffers b;
    for (std::size_t i = 0; i < kInFlight; ++i) {
      b.scores[i] = phase_.psum();
      b.probabilities[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
      b.transposed[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
      b.correction[i] = phase_.sbuf(4);
      b.before[i] = phase_.sbuf(4);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      b.turned[i] = phase_.psum();
      b.products[i] = phase_.psum();
      if (a_.dropout) b.drawn[i] = phase_.sbuf(kBlock * 4), b.kept[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
    }
    for (TileId& sum : b.sums) sum = a_.dropout ? phase_.sbuf(4) : isa::kNone;
    return b;
  }

  /// A block takes four turns, however many tiles it has: what a strip adds to is settled before the next one of its tile corrects it.
  static std::vector<Strip> make_strips(const std::vector<Block>& all) {
    std::vector<Strip> strips;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Block& block = all[i];
      const std::vector<std::int64_t> sizes = tile_sizes(block.queries);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        const std::int64_t visible = static_cast<std::int64_t>(t) * kTile;  // to all of the tile's queries
        Strip s{block.rows, block.columns, block.query, block.key, static_cast<int>(t), static_cast<int>(sizes[t]), block.keys, 0, 0, {}, i * kInFlight + t};
        if (block.diagonal) s.keys = std::min(visible + sizes[t], block.keys), s.masked = std::max<std::int64_t>(s.keys - visible, 0);
        strips.push_back(s);
      }
    }
    return strips;
  }

  /// [queries, keys] of a strip's scores in PSUM.
  Ref scores_of(const Strip& s, const Buffers& b) const { return phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries, row(s.keys)); }

  void scores(const Strip& s, const Buffers& b) {
    phase_.matmul(scores_of(s, b), phase_.at(s.rows->transposed, array_, static_cast<int>(d_), row(s.queries), s.query * kBlock + Index(s.tile * kTile)),
                  phase_.at(s.columns->transposed, array_, static_cast<int>(d_), row(s.keys), s.key * kBlock + Index(s.first_key)), false);
  }

  void softmax(const Strip& s, const Buffers& b) {
    if (s.masked > 0) {
      const Ref corner = phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries, row(s.masked), s.keys - s.masked);
      phase_.tensor_tensor(AluOp::kSubtract, corner, corner, phase_.at(mask_, DType::kFp32, s.queries, row(s.masked)));
    }
    if (s.edge.keys > 0) {
      const Ref corner = phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries, row(s.edge.keys));
      phase_.tensor_tensor(AluOp::kSubtract, corner, corner, phase_.at(edge_, DType::kFp32, s.queries, row(s.edge.keys), s.edge.column));
    }
    const Ref minimum = minimum_of(s);
    phase_.reduce(AluOp::kMin, minimum, scores_of(s, b), true);
    phase_.activation_column(Activation::kExp, phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(s.keys)), scores_of(s, b), -1, minimum);
    if (a_.dropout) phase_.sum_rows_into(sum_of(s, b));
    phase_.activation_column(Activation::kExp, correction_of(s, b), before_of(s, b), -1, minimum);
  }

  Ref sum_of(const Strip& s, const Buffers& b) const { return phase_.at(b.sums[s.slot % b.sums.size()], DType::kFp32, s.queries, row(1)); }
  Ref drawn_of(const Strip& s, const Buffers& b) const { return phase_.at(b.drawn[s.slot % 2], DType::kInt32, s.queries, row(s.keys)); }

  /// A draw is below keep · 2³² − 2³¹ with probability keep. The factor comes at the end.
  void drop(const Strip& s, const Buffers& b) {
    const Ref kept = phase_.at(b.kept[s.slot % 2], work_, s.queries, row(s.keys)), p = phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(s.keys));
    phase_.tensor_scalar(kept, drawn_of(s, b), AluOp::kLess, (a_.dropout->keep - 0.5) * 4294967296.0);
    phase_.tensor_tensor(AluOp::kMultiply, p, p, kept);
    if (!a_.dropout->kept) return;
    const HbmView& view = *a_.dropout->kept;
    const Index query = s.rows->first + s.query * kBlock + Index(s.tile * kTile), key = s.columns->first + s.key * kBlock + Index(s.first_key);
    phase_.store(Phase::hbm(view.buffer, view.dtype, s.queries, view.strides[2], {{view.strides[3], static_cast<std::int32_t>(s.keys)}},
                            heads_.offset(kKept, s.rows->head) + query * view.strides[2] + key * view.strides[3]), kept);
  }

  Ref minimum_of(const Strip& s) const { return phase_.at(s.rows->minimum[static_cast<std::size_t>(s.tile)], DType::kFp32, s.queries, row(1), s.query); }
  Ref before_of(const Strip& s, const Buffers& b) const { return phase_.at(b.before[s.slot % kInFlight], DType::kFp32, s.queries, row(1)); }
  Ref correction_of(const Strip& s, const Buffers& b) const { return phase_.at(b.correction[s.slot % kInFlight], DType::kFp32, s.queries, row(1)); }

  Ref out_rows(const Strip& s) {
    return phase_.at(s.rows->out[static_cast<std::size_t>(s.tile)], DType::kFp32, s.queries, row(d_ + 1), s.query * (d_ + 1));
  }

  void transpose(const Strip& s, const Buffers& b) {
    std::int64_t at = 0;
    for (const std::int64_t n : tile_sizes(s.keys)) {
      phase_.transpose(phase_.at(b.turned[s.slot % 2], turned_, static_cast<int>(n), row(s.queries), at),
                       phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(n), at));
      at += kTile;
    }
  }

  /// Vector also reduces: Scalar takes every other copy.
  void copy(const Strip& s, const Buffers& b) {
    const Ref out = out_rows(s);
    phase_.emit(Engine::kScalar, isa::Opcode::kTensorScalar, out, out, correction_of(s, b)).alu = AluOp::kMultiply;
    const TileId bank = b.turned[s.slot % 2], into = b.transposed[s.slot % kInFlight];
    const Engine engine = s.slot % 2 == 0 ? Engine::kVector : Engine::kScalar;
    const std::int64_t full = s.keys / kTile, rest = s.keys % kTile;
    const Dims tiles{{kTile, static_cast<std::int32_t>(full)}, {1, s.queries}};
    if (full > 0) phase_.copy(engine, phase_.at(into, work_, kTile, tiles), phase_.at(bank, turned_, kTile, tiles));
    if (rest == 0) return;
    phase_.copy(engine, phase_.at(into, work_, static_cast<int>(rest), row(s.queries), full * kTile),
                phase_.at(bank, turned_, static_cast<int>(rest), row(s.queries), full * kTile));
  }

  Ref product_of(const Strip& s, const Buffers& b) const { return phase_.at(b.products[s.slot % 2], DType::kFp32, s.queries, row(d_ + 1)); }

  void multiply(const Strip& s, const Buffers& b) {
    std::int64_t t = 0;
    for (const std::int64_t n : tile_sizes(s.keys)) {
      phase_.matmul(product_of(s, b), phase_.at(b.transposed[s.slot % kInFlight], array_, static_cast<int>(n), row(s.queries), t * kTile),
                    phase_.at(s.columns->values, array_, static_cast<int>(n), row(d_ + 1), s.key * (kTilesPerBlock * (d_ + 1)) + Index((s.first_key / kTile + t) * (d_ + 1))), t > 0);
      ++t;
    }
  }

  void add(const Strip& s, const Buffers& b) {
    Ref out = out_rows(s), product = product_of(s, b);
    if (a_.dropout) {  // the last column sums what was kept: the denominator is the sum of all
      const TileId tile = s.rows->out[static_cast<std::size_t>(s.tile)];
      const Ref sum = phase_.at(tile, DType::kFp32, s.queries, row(1), s.query * (d_ + 1) + Index(d_));
      phase_.tensor_tensor(AluOp::kAdd, sum, sum, sum_of(s, b));
      out = phase_.at(tile, DType::kFp32, s.queries, row(d_), s.query * (d_ + 1));
      product = phase_.at(b.products[s.slot % 2], DType::kFp32, s.queries, row(d_));
    }
    phase_.tensor_tensor(AluOp::kAdd, out, out, product);
  }

  void finish(const Head& head, const Index& first, const Queries& q) {
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
    each_block(q.count, [&](const Index& b, std::int64_t count) {
      const TileId out = phase_.sbuf(kTilesPerBlock * d_ * isa::size_bytes(a_.out.dtype), 2);
      std::int64_t i = 0;
      for (const std::int64_t rows : tile_sizes(count)) {
        const int p = static_cast<int>(rows);
        phase_.tensor_column(phase_.at(out, a_.out.dtype, p, row(d_), i * d_),
                             phase_.at(q.out[static_cast<std::size_t>(i)], DType::kFp32, p, row(d_), b * (d_ + 1)), AluOp::kMultiply,
                             phase_.at(sums.tile, DType::kFp32, p, row(1), b * kTilesPerBlock + Index(i)),
                             a_.dropout ? AluOp::kMultiply : AluOp::kNone, a_.dropout ? a_.dropout->factor : 0);
        ++i;
      }
      store_block(phase_, rows_of(a_.out, heads_.offset(kOut, head), first, q.count), b, count, out);
    });
  }

  /// Turned so that neighbours in HBM are neighbours in a transfer's row.
  void store_logsumexp(const Head& head, const Index& first, const Queries& q, const Ref& sums) {
    const HbmView& lse = *a_.logsumexp;
    const std::int64_t columns = q.blocks() * kTilesPerBlock, stride = lse.strides[2];
    const Ref logs = phase_.at(phase_.sbuf(columns * 4), DType::kFp32, kTile, row(columns));
    phase_.activation(Activation::kLog, logs, sums);
    for (std::int64_t i = 0; i < kTilesPerBlock; ++i) {
      const Ref part = phase_.at(logs.tile, DType::kFp32, kTile, {{kTilesPerBlock, static_cast<std::int32_t>(q.blocks())}}, i);
      phase_.tensor_tensor(AluOp::kSubtract, part, part, phase_.at(q.minimum[static_cast<std::size_t>(i)], DType::kFp32, kTile, row(q.blocks())));
    }
    const Index offset = heads_.offset(kLse, head) + first * stride;
    const auto store = [&](std::int64_t tile, std::int64_t tiles, std::int64_t rows) {
      const int p = static_cast<int>(tiles);
      const Ref out = phase_.at(phase_.sbuf(kTile * 4, depth()), lse.dtype, p, row(rows));
      phase_.scope([&] {
        const Ref turned = phase_.at(phase_.psum(), DType::kFp32, p, row(rows));
        phase_.transpose(turned, phase_.at(logs.tile, DType::kFp32, static_cast<int>(rows), row(tiles), tile));
        phase_.copy(Engine::kScalar, out, turned);
      });
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
  DType turned_;        ///< probabilities in PSUM, turned
  std::int64_t reach_;
  SlidingWindow window_;
  std::int64_t together_ = 0;  ///< blocks of queries that slide along the window at a time
  bool ahead_ = false;         ///< rows of the next heads or chunk arrive while these are in use
  bool apart_ = false;         ///< the first ones have memory of their own, so that heads overlap too
  TileId mask_ = isa::kNone, edge_ = isa::kNone;  ///< added where a score must not count: above the diagonal, before the window
};

}  // namespace

bool lower_attention(ProgramBuilder& builder, std::uint32_t kernel, const Attention& given) {
  if (given.q.sizes[3] > kTile || given.scale <= 0 || (given.dropout && given.window > 0)) return false;
  Attention attention = given;
  if (!narrow_window(attention.causal, attention.q, attention.k, attention.window)) return false;
  const DType work = work_dtype({&attention.q, &attention.k, &attention.v});
  const DType turned = turned_dtype(work, builder.core());
  if (attention.window > 0) {
    for (const auto& [together, apart] : {std::pair{4, true}, {4, false}, {2, false}, {1, false}}) {
      Phase phase = Forward(kernel, attention, work, 0, turned).run_window(together, apart);
      if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
    }
    return false;
  }
  const std::int64_t reach = reach_of(attention, builder.sbuf_bytes(), work);
  if (reach == 0) return false;
  for (const Together& together : Forward(kernel, attention, work, reach, turned).heads_together()) {
    Phase phase = Forward(kernel, attention, work, reach, turned).run_together(together);
    if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
  }
  builder.append(Forward(kernel, attention, work, reach, turned).run());
  return true;
}

}  // namespace trellis::device
