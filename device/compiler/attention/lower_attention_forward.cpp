#include "device/compiler/attention/attention_forward.h"

namespace trellis::device::attention::forward {

Phase Forward::run_window(std::int64_t blocks, bool own_memory) {
  together_ = blocks;
  ahead_ = true;
  own_memory_ = own_memory;
  mask_ = causal_mask(phase_);
  edge_ = window_.edge_mask(phase_);
  heads_.loop(phase_, [&](const Head& head) { slide(head); });
  return std::move(phase_);
}

Phase Forward::run_together(const Together& together) {
  ahead_ = true;
  mask_ = causal_mask(phase_);
  heads_.loop_together(phase_, together.key_heads,
                       [&](const std::vector<Head>& heads) { several(heads, together.queries); });
  return std::move(phase_);
}

Phase Forward::run() {
  if (a_.causal) mask_ = causal_mask(phase_);
  heads_.loop(phase_, [&](Head head) {
    const auto queries = [&](const Keys& resident) {
      phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
        head.query = i;
        for (std::int64_t first = 0; first < lq_; first += reach_)
          phase_.scope([&] { query_rows(head, first, std::min(reach_, lq_ - first), resident); });
      });
    };
    queries(lk_ <= reach_ ? load_keys(head, 0, lk_) : Keys{});
  });
  return std::move(phase_);
}

std::vector<HbmView> Forward::views(const Attention& a) {
  const HbmView& of_scores = a.mask                         ? *a.mask
                             : a.dropout && a.dropout->kept ? *a.dropout->kept
                                                            : a.q;
  std::vector<HbmView> v{a.q, a.out, a.k, a.v, of_scores};
  if (a.logsumexp) v.push_back(*a.logsumexp);
  return v;
}

void Forward::load(const Rows& rows, const RowTiles& into) {
  if (ahead_) return load_rows_ahead(phase_, rows, into);
  phase_.scope([&] { load_rows(phase_, rows, into); });
}

Forward::Keys Forward::load_keys(const Head& head, const Index& first, std::int64_t count) {
  const std::int64_t size = isa::size_bytes(work_), tiles = ceil_div(count, kTile);
  const Keys keys{phase_.sbuf(count * size, depth()), phase_.sbuf(tiles * (d_ + 1) * size, depth()),
                  first};
  load(rows_of(a_.k, heads_.offset(kK, head), first, count),
       {work_, isa::kNone, 0, keys.transposed});
  load(rows_of(a_.v, heads_.offset(kV, head), first, count),
       {work_, keys.values, d_ + 1, isa::kNone});
  phase_
      .emit(Engine::kGpSimd, isa::Opcode::kMemset,
            phase_.at(keys.values, work_, kTile, {{d_ + 1, static_cast<std::int32_t>(tiles)}}, d_))
      .imm0 = 1;
  return keys;
}

Forward::Queries Forward::load_queries(const Head& head, const Index& first, std::int64_t count) {
  Queries q;
  q.head = head;
  q.first = first;
  q.count = count;
  q.transposed = phase_.sbuf(count * isa::size_bytes(work_), depth());
  for (TileId& out : q.out) {
    out = phase_.sbuf(q.blocks() * (d_ + 1) * 4, depth());
    phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset,
                phase_.at(out, DType::kFp32, kTile, row(q.blocks() * (d_ + 1))));
  }
  for (TileId& minimum : q.minimum) {
    minimum = phase_.sbuf(q.blocks() * 4, depth());
    phase_.memset(phase_.at(minimum, DType::kFp32, kTile, row(q.blocks())), -kMasked);
  }
  load(rows_of(a_.q, heads_.offset(kQ, head), first, count),
       {work_, isa::kNone, 0, q.transposed, -a_.scale});
  return q;
}

void Forward::several(const std::vector<Head>& heads, std::int64_t queries) {
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

std::vector<Forward::Block> Forward::square_blocks(const std::vector<Queries>& rows,
                                                   const std::vector<Keys>& keys,
                                                   std::int64_t queries) const {
  const auto size = [this](std::int64_t block) { return std::min(kBlock, lq_ - block * kBlock); };
  std::vector<Block> all;
  for (std::int64_t query = 0; query < ceil_div(lq_, kBlock); ++query) {
    for (std::int64_t key = 0; key <= query; ++key) {
      for (std::size_t i = 0; i < rows.size(); ++i)
        all.push_back({&rows[i], &keys[i / static_cast<std::size_t>(queries)], query, key,
                       size(query), size(key), key == query});
    }
  }
  return all;
}

void Forward::query_rows(const Head& head, std::int64_t first, std::int64_t count,
                         const Keys& resident) {
  const Queries q = load_queries(head, first, count);
  const auto with_keys = [&](const Index& from, std::int64_t keys, auto body) {
    phase_.scope(
        [&] { body(resident.transposed != isa::kNone ? resident : load_keys(head, from, keys)); });
  };
  if (a_.causal && first < lk_) {
    const std::int64_t keys = std::min(reach_, lk_ - first);
    with_keys(first, keys, [&](const Keys& k) { triangle(q, k, count, keys); });
  }
  const std::int64_t whole =
      a_.causal ? std::min(first, lk_) : lk_;  // keys that all of these queries see
  phase_.tiles(whole, reach_, [&](const Index& from, std::int64_t keys) {
    with_keys(from, keys, [&](const Keys& k) { rectangle(q, k, {0, count, 0, keys}); });
  });
  finish(head, first, q);
}

void Forward::triangle(const Queries& q, const Keys& k, std::int64_t queries, std::int64_t keys) {
  const bool pairs = queries == keys && keys % (2 * kBlock) == 0;
  if (pairs) {
    phase_.loop(keys / (2 * kBlock), [&](const Index& i) {
      const Index upper = i * 2, lower = i * 2 + Index(1);
      step(make_strips({{&q, &k, upper, upper, kBlock, kBlock, true},
                        {&q, &k, lower, lower, kBlock, kBlock, true},
                        {&q, &k, lower, upper, kBlock, kBlock, false}}));
    });
  } else {
    diagonal_blocks(phase_, queries, keys,
                    [&](const Index& i, std::int64_t rows, std::int64_t columns) {
                      step(make_strips({{&q, &k, i, i, rows, columns, true}}));
                    });
  }
  below_diagonal(phase_, queries, keys, pairs ? 2 * kBlock : kBlock,
                 [&](const Area& area) { rectangle(q, k, area); });
}

void Forward::slide(const Head& head) {
  const std::int64_t all = lq_ / kBlock, full = all / together_,
                     started =
                         std::min(ceil_div(window_.tiles(), together_ * kTilesPerBlock), full);
  const auto before = [&](std::int64_t block) {
    return std::min(window_.tiles(), block * kTilesPerBlock);
  };
  for (std::int64_t i = 0; i < started; ++i) {
    const auto first = [&] { chunk(head, i * together_, together_, before(i * together_)); };
    own_memory_ ? first() : phase_.scope(first);
  }
  phase_.loop(full - started, [&](const Index& i) {
    chunk(head, i * together_ + Index(started * together_), together_, window_.tiles());
  });
  if (all % together_ != 0)
    phase_.scope([&] { chunk(head, full * together_, all % together_, before(full * together_)); });
}

void Forward::chunk(Head head, const Index& first, std::int64_t blocks, std::int64_t before) {
  const Index row = first * kBlock;
  const Keys keys = load_keys(head, row + Index(-before * kTile), before * kTile + blocks * kBlock);
  phase_.loop(heads_.queries_per_key(), [&](const Index& i) {
    head.query = i;
    const Queries q = load_queries(head, row, blocks * kBlock);
    std::vector<Strip> strips;
    const std::int64_t pieces = ceil_div(window_.tiles() + 1, kTilesPerBlock);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::vector<Strip> more = window_strips(
          q, keys, block, before * kTile, static_cast<std::size_t>(block * pieces) * kInFlight);
      strips.insert(strips.end(), more.begin(), more.end());
    }
    phase_.scope([&] { step(strips); });
    // Next to the step's buffers: the next ones need not wait for these stores.
    phase_.reserve(kInFlight * (2 * kBlock * isa::size_bytes(work_) + 256));
    finish(head, row, q);
  });
}

std::vector<Forward::Strip> Forward::window_strips(const Queries& q, const Keys& k,
                                                   std::int64_t block, std::int64_t before,
                                                   std::size_t slot) const {
  std::vector<Strip> strips;
  for (std::int64_t t = 0; t < kTilesPerBlock; ++t) {
    const std::int64_t edge = (t - window_.tiles()) * kTile, end = (t + 1) * kTile;
    std::size_t piece = 0;
    for (std::int64_t from = std::max(edge, -before - block * kBlock); from < end;
         from += kBlock, ++piece) {
      Strip s{&q,
              &k,
              Index(block),
              Index(block),
              static_cast<int>(t),
              static_cast<int>(kTile),
              std::min(kBlock, end - from),
              0,
              before + from,
              {},
              slot + piece * kInFlight + static_cast<std::size_t>(t)};
      if (from + s.keys == end) s.masked = kTile;
      if (piece == 0) s.edge = window_.edge(t - from / kTile, s.keys);
      strips.push_back(s);
    }
  }
  std::sort(strips.begin(), strips.end(),
            [](const Strip& x, const Strip& y) { return x.slot < y.slot; });
  return strips;
}

void Forward::rectangle(const Queries& q, const Keys& k, const Area& area) {
  blocks(phase_, area.queries, [&](const Index& i, std::int64_t queries) {
    const auto some = [&](const Index& from, std::int64_t keys) {
      std::vector<Block> all;
      for (std::int64_t at = 0; at < keys; at += kBlock) {
        all.push_back({&q, &k, area.query + i, area.key + from + Index(at / kBlock), queries,
                       std::min(kBlock, keys - at), false});
      }
      step(make_strips(all));
    };
    phase_.loop(area.keys / kStepKeys,
                [&](const Index& j) { some(j * (kStepKeys / kBlock), kStepKeys); });
    if (area.keys % kStepKeys != 0)
      phase_.scope(
          [&] { some(area.keys / kStepKeys * (kStepKeys / kBlock), area.keys % kStepKeys); });
  });
}

void Forward::step(const std::vector<Strip>& strips) {
  const Buffers b = make_buffers();
  std::vector<const Strip*> at(strips.back().slot + 1, nullptr);
  for (const Strip& s : strips) at[s.slot] = &s;
  const auto stage = [&](std::size_t turn, std::size_t late, auto body) {
    if (turn >= late && turn - late < at.size() && at[turn - late] != nullptr)
      body(*at[turn - late]);
  };
  for (std::size_t turn = 0; turn < at.size() + 7; ++turn) {
    stage(turn, 7, [&](const Strip& s) { add(s, b); });
    stage(turn, 6, [&](const Strip& s) { multiply(s, b); });
    stage(turn, 4, [&](const Strip& s) { copy(s, b); });
    stage(turn, 3, [&](const Strip& s) { transpose(s, b); });
    stage(turn, 0, [&](const Strip& s) {
      phase_.copy(Engine::kGpSimd, before_of(s, b), minimum_of(s));
      if (a_.dropout) phase_.emit(Engine::kGpSimd, isa::Opcode::kRandom, drawn_of(s, b));
      if (a_.mask) phase_.load(mask_of(s, b), in_hbm(*a_.mask, s));
      scores(s, b);
    });
    stage(turn, 1, [&](const Strip& s) {
      softmax(s, b);
      if (a_.dropout) drop(s, b);
    });
  }
}

Forward::Buffers Forward::make_buffers() {
  Buffers b;
  for (std::size_t i = 0; i < kInFlight; ++i) {
    b.scores[i] = phase_.psum();
    b.probabilities[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
    b.transposed[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
    b.correction[i] = phase_.sbuf(4);
    b.before[i] = phase_.sbuf(4);
    if (a_.mask) b.masks[i] = phase_.sbuf(kBlock * isa::size_bytes(a_.mask->dtype));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    b.transposed_bank[i] = phase_.psum();
    b.products[i] = phase_.psum();
    if (a_.dropout)
      b.drawn[i] = phase_.sbuf(kBlock * 4),
      b.kept[i] = phase_.sbuf(kBlock * isa::size_bytes(work_));
  }
  for (TileId& sum : b.sums) sum = a_.dropout ? phase_.sbuf(4) : isa::kNone;
  return b;
}

}  // namespace trellis::device::attention::forward

namespace trellis::device {
namespace {

using namespace attention;
using attention::forward::Forward;
using isa::DType;

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const Attention& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block =
      kBlock * 2 * size + kTilesPerBlock * (d + 1) * (size + 4) + 5 * kTilesPerBlock * 4;
  const std::int64_t fixed = 3 * kTilesPerBlock * d * 4 + 2 * kTilesPerBlock * kBlock * size +
                             2 * kTilesPerBlock * d * 4 + 6144 +
                             (a.dropout ? 2 * kBlock * (4 + size) : 0) +
                             (a.mask ? 4 * kBlock * isa::size_bytes(a.mask->dtype) : 0);
  return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), (sbuf - fixed) / block);
}

}  // namespace

bool lower_attention(ProgramBuilder& builder, std::uint32_t kernel, const Attention& given) {
  if (given.q.sizes[3] > kTile || given.scale <= 0 || (given.dropout && given.window > 0) ||
      (given.mask && (given.dropout || given.window > 0)))
    return false;
  Attention attention = given;
  if (!narrow_window(attention.causal, attention.q, attention.k, attention.window)) return false;
  const DType work = work_dtype({&attention.q, &attention.k, &attention.v});
  if (attention.window > 0) {
    for (const auto& [together, own_memory] :
         {std::pair{4, true}, {4, false}, {2, false}, {1, false}}) {
      Phase phase =
          Forward(kernel, attention, work, 0, builder.core()).run_window(together, own_memory);
      if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
    }
    return false;
  }
  const std::int64_t reach = reach_of(attention, builder.sbuf_bytes(), work);
  if (reach == 0) return false;
  for (const Together& together :
       Forward(kernel, attention, work, reach, builder.core()).heads_together()) {
    Phase phase = Forward(kernel, attention, work, reach, builder.core()).run_together(together);
    if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
  }
  builder.append(Forward(kernel, attention, work, reach, builder.core()).run());
  return true;
}

}  // namespace trellis::device
