#include "device/compiler/attention/attention_backward.h"

namespace trellis::device::attention::backward {

Phase Backward::run() {
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

Phase Backward::run_together(const Together& together) {
  ahead_ = true;
  mask_ = causal_mask(phase_);
  heads_.loop_together(phase_, together.key_heads, [&](const std::vector<Head>& heads) {
    std::vector<Keys> keys;
    for (const Head& head : heads) keys.push_back(load_keys(head));
    phase_.loop(heads_.queries_per_key() / together.queries, [&](const Index& i) {
      several(heads, keys, i * together.queries, together.queries);
    });
    for (std::size_t h = 0; h < heads.size(); ++h) store_key_gradients(heads[h], keys[h]);
  });
  return std::move(phase_);
}

Backward::Keys Backward::load_keys(const Head& head) {
  const std::int64_t size = isa::size_bytes(work_);
  Keys keys;
  keys.count = std::min(reach_, lk_ - first_);
  keys.k = phase_.sbuf(ceil_div(keys.count, kTile) * d_ * size);
  keys.k_transposed = phase_.sbuf(keys.count * size);
  keys.v_transposed = phase_.sbuf(keys.count * size);
  keys.grad_k = zeros(keys.count);
  keys.grad_v = zeros(keys.count);
  load(rows_of(a_.k, heads_.offset(kK, head), first_, keys.count),
       {work_, keys.k, d_, keys.k_transposed});
  load(rows_of(a_.v, heads_.offset(kV, head), first_, keys.count),
       {work_, isa::kNone, 0, keys.v_transposed});
  return keys;
}

void Backward::load(const Rows& rows, const RowTiles& into) {
  if (ahead_) return load_rows_ahead(phase_, rows, into);
  phase_.scope([&] { load_rows(phase_, rows, into); });
}

TileId Backward::zeros(std::int64_t count) {
  const TileId tile = phase_.sbuf(count * 4);
  phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset, transposed(tile, 0, count));
  return tile;
}

void Backward::visit_queries(const Head& head, const Keys& keys) {
  std::int64_t from = 0;
  if (a_.causal) {
    from = first_ + reach_;
    if (first_ < lq_)
      phase_.scope([&] { query_rows(head, first_, std::min(reach_, lq_ - first_), keys, true); });
  }
  if (from >= lq_) return;
  phase_.tiles(lq_ - from, reach_, [&](const Index& i, std::int64_t count) {
    query_rows(head, i + Index(from), count, keys, false);
  });
}

void Backward::visit_window(const Head& head, const Keys& k) {
  const std::int64_t reach = window_.blocks() * kBlock,
                     count = std::min(k.count + reach, lq_ - first_);
  const Queries q = load_queries(head, first_, count, first_ > 0 ? std::min(reach, count) : 0);
  const std::int64_t blocks = k.count / kBlock,
                     complete = std::min(
                         blocks, std::max<std::int64_t>(0, count / kBlock - window_.blocks()));
  phase_.loop(complete,
              [&](const Index& j) { window_of(q, k, j, window_.tiles() + kTilesPerBlock); });
  for (std::int64_t j = complete; j < blocks; ++j) {
    phase_.scope([&] {
      window_of(q, k, j,
                std::min(window_.tiles() + kTilesPerBlock, (count / kBlock - j) * kTilesPerBlock));
    });
  }
  phase_.scope([&] {
    store_transposed(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, head), first_, k.count),
                     q.grad_q, a_.scale);
  });
  if (count > k.count)
    phase_.store(partial(head, first_ + k.count, count - k.count),
                 transposed(q.grad_q, k.count, count - k.count));
}

void Backward::window_of(const Queries& q, const Keys& k, const Index& key, std::int64_t tiles) {
  const Sums sums = make_sums();
  std::vector<Block> all;
  for (std::int64_t t = 0; t < tiles; t += kTilesPerBlock) {
    all.push_back({&q, &k, key + Index(t / kTilesPerBlock), key,
                   std::min(kTilesPerBlock, tiles - t) * kTile, kBlock, false, false, false, t});
  }
  run_strips(window_strips(all), {false, true}, sums);
  add_sums(k, key, kBlock, sums);
}

void Backward::query_rows(const Head& head, const Index& first, std::int64_t count,
                          const Keys& keys, bool diagonal) {
  const Queries q = load_queries(head, first, count, first_ > 0 ? count : 0);
  if (diagonal) {
    diagonal_blocks(phase_, count, keys.count,
                    [&](const Index& i, std::int64_t queries, std::int64_t n) {
                      diagonal_block(q, keys, i, queries, n);
                    });
    below_diagonal(phase_, count, keys.count, kBlock,
                   [&](const Area& area) { rectangle(q, keys, area); });
  } else {
    rectangle(q, keys, {0, count, 0, keys.count});
  }
  const bool last = first_ + reach_ >= lk_ || diagonal;
  if (last) {
    phase_.scope([&] {
      store_transposed(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, head), first, count),
                       q.grad_q, a_.scale);
    });
  } else {
    phase_.store(partial(head, first, count), transposed(q.grad_q, 0, count));
  }
}

Ref Backward::partial(const Head& head, const Index& first, std::int64_t count) {
  return Phase::hbm(partial_.buffer, DType::kFp32, static_cast<int>(d_), partial_.strides[2],
                    row(count), heads_.offset(kPartial, head) + first);
}

Backward::Queries Backward::load_queries(const Head& head, const Index& first, std::int64_t count,
                                         std::int64_t carried) {
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
  if (carried < count)
    phase_.emit(Engine::kGpSimd, isa::Opcode::kMemset,
                transposed(q.grad_q, carried, count - carried));
  load(rows_of(a_.q, heads_.offset(kQ, head), first, count), {work_, q.q, d_, q.q_transposed});
  load(rows_of(a_.grad_out, heads_.offset(kGradOut, head), first, count),
       {work_, q.grad_out, d_, q.grad_out_transposed});
  phase_.scope([&] { load_logsumexp(head, first, q); });
  phase_.scope([&] { find_delta(head, first, q); });
  return q;
}

void Backward::load_logsumexp(const Head& head, const Index& first, const Queries& q) {
  const HbmView& lse = a_.logsumexp;
  const std::int64_t stride = lse.strides[2];
  const Index offset = heads_.offset(kLse, head) + first * stride;
  const auto load = [&](std::int64_t tile, std::int64_t tiles, std::int64_t rows) {
    const int p = static_cast<int>(tiles), n = static_cast<int>(rows);
    const Ref raw = phase_.at(phase_.sbuf(kTile * 4), lse.dtype, p, row(rows));
    const Ref transposed = phase_.at(phase_.psum(), DType::kFp32, n, row(tiles));
    phase_.load(raw, Phase::hbm(lse.buffer, lse.dtype, p, kTile * stride, {{stride, n}},
                                offset + Index(tile * kTile * stride)));
    phase_.transpose(transposed, raw);
    phase_.tensor_scalar(phase_.at(q.logsumexp, DType::kFp32, n, row(tiles), tile), transposed,
                         AluOp::kMultiply, -1);
  };
  const std::int64_t full = q.count / kTile, rest = q.count % kTile;
  if (full > 0) load(0, full, kTile);
  if (rest > 0) load(full, 1, rest);
}

void Backward::find_delta(const Head& head, const Index& first, const Queries& q) {
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
      phase_.tensor_tensor(
          AluOp::kMultiply, terms, phase_.at(out, rows.dtype, p, row(d_), t * d_),
          phase_.at(q.grad_out, work_, p, row(d_), b * (kTilesPerBlock * d_) + Index(t * d_)));
      phase_.reduce(AluOp::kAdd,
                    phase_.at(q.delta, DType::kFp32, p, row(1), b * kTilesPerBlock + Index(t)),
                    terms);
      ++t;
    }
  });
  phase_.tensor_scalar(delta, delta, AluOp::kMultiply, -1);
}

void Backward::store_key_gradients(Head head, const Keys& keys) {
  head.query = 0;
  phase_.scope([&] {
    store_transposed(phase_, rows_of(a_.grad_k, heads_.offset(kGradK, head), first_, keys.count),
                     keys.grad_k, a_.scale);
  });
  phase_.scope([&] {
    store_transposed(phase_, rows_of(a_.grad_v, heads_.offset(kGradV, head), first_, keys.count),
                     keys.grad_v, a_.dropout ? a_.dropout->factor : 1);
  });
}

void Backward::several(const std::vector<Head>& heads, const std::vector<Keys>& keys,
                       const Index& from, std::int64_t queries) {
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
  for (const Queries& q : rows)
    phase_.scope([&] {
      store_transposed(phase_, rows_of(a_.grad_q, heads_.offset(kGradQ, q.head), 0, lq_), q.grad_q,
                       a_.scale);
    });
}

std::vector<Backward::Block> Backward::square_blocks(const std::vector<Queries>& rows,
                                                     const std::vector<Keys>& keys,
                                                     std::int64_t queries) const {
  const auto size = [this](std::int64_t block) { return std::min(kBlock, lq_ - block * kBlock); };
  const std::int64_t side = ceil_div(lq_, kBlock);
  std::vector<Block> all;
  for (std::int64_t key = 0; key < side; ++key) {
    for (std::size_t h = 0; h < keys.size(); ++h) {
      const std::size_t first = all.size();
      for (std::int64_t query = key; query < side; ++query) {
        for (std::int64_t i = 0; i < queries; ++i) {
          all.push_back({&rows[h * static_cast<std::size_t>(queries) + static_cast<std::size_t>(i)],
                         &keys[h], query, key, size(query), size(key), query == key});
        }
      }
      all[first].starts = all.back().ends = true;
    }
  }
  return all;
}

void Backward::add_sums(const Keys& k, const Index& key, std::int64_t keys, const Sums& sums) {
  for (const auto& [total, sum] :
       {std::pair{k.grad_v, sums.grad_v}, std::pair{k.grad_k, sums.grad_k}}) {
    const Ref into = transposed(total, key * kBlock, keys);
    phase_.tensor_tensor(AluOp::kAdd, into, into, transposed(sum, 0, keys));
  }
}

void Backward::diagonal_block(const Queries& q, const Keys& k, const Index& i, std::int64_t queries,
                              std::int64_t keys) {
  const Sums sums = make_sums();
  const std::int64_t visible = std::min(queries, keys);
  step({{&q, &k, i, i, queries, visible, true}}, {false, true}, sums);
  add_sums(k, i, visible, sums);
}

void Backward::rectangle(const Queries& q, const Keys& k, const Area& area) {
  blocks(phase_, area.keys, [&](const Index& j, std::int64_t keys) {
    const Sums sums = make_sums();
    const Index key = area.key + j;
    const std::int64_t groups = area.queries / kStepQueries, rest = area.queries % kStepQueries;
    const auto some = [&](const Index& from, std::int64_t queries, const Start& start) {
      std::vector<Block> all;
      for (std::int64_t at = 0; at < queries; at += kBlock) {
        all.push_back({&q, &k, area.query + from + Index(at / kBlock), key,
                       std::min(kBlock, queries - at), keys, false});
      }
      step(all, start, sums);
    };
    phase_.loop(groups, [&](const Index& i) {
      some(i * (kStepQueries / kBlock), kStepQueries, {groups > 1, true});
    });
    if (rest > 0)
      phase_.scope([&] { some(groups * (kStepQueries / kBlock), rest, {false, groups == 0}); });
    add_sums(k, key, keys, sums);
  });
}

void Backward::run_strips(const std::vector<Strip>& strips, const Start& start, const Sums& sums) {
  const Buffers b = make_buffers();
  for (std::size_t turn = 0; turn < strips.size() + 3; ++turn) {
    if (turn < strips.size()) multiply_queries(strips[turn], b);
    if (turn >= 2 && turn - 2 < strips.size()) use_grad(strips[turn - 2], start, sums, b);
    if (turn >= 3 && strips[turn - 3].last) add_grad_q(strips[turn - 3], b);
    if (turn < strips.size()) find_grad(strips[turn], b);
  }
}

Backward::Buffers Backward::make_buffers() {
  const std::int64_t size = isa::size_bytes(work_);
  Buffers b;
  for (std::size_t i = 0; i < 2; ++i) {
    b.scores[i] = phase_.psum();
    b.grads[i] = phase_.psum();
    b.shifted[i] = phase_.sbuf(kBlock * size);
    b.transposed[i] = phase_.sbuf(kTilesPerBlock * kBlock * size);
  }
  for (std::size_t i = 0; i < kInFlight; ++i) {
    b.probabilities[i] = phase_.sbuf(kBlock * size);
    b.grad[i] = phase_.sbuf(kBlock * size);
    if (a_.dropout) b.of_scores[i] = phase_.sbuf(kBlock * size);
    if (a_.mask) b.of_scores[i] = phase_.sbuf(kBlock * isa::size_bytes(a_.mask->dtype));
  }
  b.bank = phase_.psum();
  b.grad_q = phase_.psum();
  return b;
}

std::vector<Backward::Strip> Backward::make_strips(const std::vector<Block>& all) {
  std::vector<Strip> strips;
  for (const Block& block : all) {
    const std::vector<std::int64_t> sizes = tile_sizes(block.queries);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t t = block.diagonal ? sizes.size() - 1 - i : i;
      const std::int64_t visible =
          static_cast<std::int64_t>(t) * kTile;  // to all of the tile's queries
      Strip s{&block,
              static_cast<std::int64_t>(t),
              static_cast<int>(sizes[t]),
              block.keys,
              0,
              i == 0 && (strips.empty() || block.starts),
              i + 1 == sizes.size(),
              strips.size(),
              static_cast<std::size_t>(&block - all.data()) % 2,
              0,
              {}};
      if (block.diagonal)
        s.keys = std::min(visible + sizes[t], block.keys),
        s.masked = std::max<std::int64_t>(s.keys - visible, 0);
      strips.push_back(s);
    }
  }
  return strips;
}

}  // namespace trellis::device::attention::backward

namespace trellis::device {
namespace {

using namespace attention;
using attention::backward::Backward;
using isa::DType;

/// How many queries and keys are on chip at a time; 0 when not even one block fits.
std::int64_t reach_of(const AttentionBackward& a, std::int64_t sbuf, DType work) {
  const std::int64_t size = isa::size_bytes(work), d = a.q.sizes[3];
  const std::int64_t block =
      kBlock * 4 * size + 3 * kTilesPerBlock * d * size + 3 * kBlock * 4 + 2 * kTilesPerBlock * 4;
  const std::int64_t fixed = 4 * kTilesPerBlock * d * 4 + (2 * kTilesPerBlock + 8) * kBlock * size +
                             4096 + (a.window > 0 ? 2 * kTile * 4 : 0) +
                             (a.dropout ? 3 * kBlock * size : 0) +
                             (a.mask ? 3 * kBlock * isa::size_bytes(a.mask->dtype) : 0);
  const std::int64_t fitting = (sbuf - fixed) / block;
  if (a.window == 0) return balanced_reach(std::max(a.q.sizes[2], a.k.sizes[2]), fitting);
  return balanced_reach(
      a.k.sizes[2], std::min(fitting, kTile / kTilesPerBlock) - SlidingWindow(a.window).blocks());
}

}  // namespace

bool lower_attention_backward(ProgramBuilder& builder, std::uint32_t kernel,
                              const AttentionBackward& given) {
  if (given.q.sizes[3] > kTile || given.scale <= 0 || (given.dropout && given.window > 0) ||
      (given.mask && (given.dropout || given.window > 0)))
    return false;
  AttentionBackward a = given;
  if (!narrow_window(a.causal, a.q, a.k, a.window)) return false;
  const DType work = work_dtype({&a.q, &a.k, &a.v, &a.grad_out});
  const std::int64_t reach = reach_of(a, builder.sbuf_bytes(), work), lk = a.k.sizes[2];
  if (reach == 0) return false;
  HbmView partial =
      contiguous(0, DType::kFp32, {a.q.sizes[0], a.q.sizes[1], a.q.sizes[3], a.q.sizes[2]});
  if (lk > reach) partial.buffer = builder.scratch(partial.elements() * 4);
  for (const Together& together :
       Backward(kernel, a, partial, work, lk, 0, transposed_dtype(work, builder.core()))
           .heads_together()) {
    Phase phase = Backward(kernel, a, partial, work, lk, 0, transposed_dtype(work, builder.core()))
                      .run_together(together);
    if (phase.sbuf_bytes() <= builder.sbuf_bytes()) return builder.append(std::move(phase)), true;
  }
  for (std::int64_t first = 0; first < lk; first += reach)
    builder.append(
        Backward(kernel, a, partial, work, reach, first, transposed_dtype(work, builder.core()))
            .run());
  return true;
}

}  // namespace trellis::device
