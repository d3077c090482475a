// The tiles of a strip: products, gradients of scores, sums over queries.
#include "device/compiler/attention/attention_backward.h"

namespace trellis::device::attention::backward {

Backward::Seen Backward::seen(std::int64_t distance) const {
  return {std::max<std::int64_t>(0, distance - window_.tiles()),
          std::min(distance, kTilesPerBlock - 1)};
}

std::vector<Backward::Strip> Backward::window_strips(const std::vector<Block>& all) const {
  std::vector<Strip> strips;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t tiles = all[i].queries / kTile;
    for (const bool starting : {true, false}) {
      for (std::int64_t t = tiles - 1; t >= 0; --t) {
        const std::int64_t distance = *all[i].distance + t;
        const bool starts = distance < kTilesPerBlock &&
                            (kTilesPerBlock - 1 - distance) % (window_.tiles() + 1) == 0;
        if (starts == starting) strips.push_back(window_strip(all[i], t, starts, i % 2));
      }
    }
    strips.back().last = true;
  }
  for (std::size_t i = 0; i < strips.size(); ++i) strips[i].slot = i;
  return strips;
}

Backward::Strip Backward::window_strip(const Block& block, std::int64_t tile, bool starts,
                                       std::size_t parity) const {
  const std::int64_t distance = *block.distance + tile;
  const auto [first, last] = seen(distance);
  const std::int64_t keys = (last - first + 1) * kTile;
  return {&block,
          tile,
          static_cast<int>(kTile),
          keys,
          last == distance ? kTile : 0,
          starts,
          false,
          0,
          parity,
          first * kTile,
          window_.edge(distance - first, keys)};
}

void Backward::multiply_queries(const Strip& t, const Buffers& b) {
  const int d = static_cast<int>(d_);
  const Queries& q = *t.block->rows;
  const Keys& k = *t.block->columns;
  const auto times = [&](const Ref& to, TileId queries, TileId keys) {
    phase_.matmul(to, phase_.at(queries, array_, d, row(t.queries), first_query(t)),
                  phase_.at(keys, array_, d, row(t.keys), first_key(t)), false);
  };
  times(scores_of(t, b), q.q_transposed, k.k_transposed);
  times(grads_of(t, b), q.grad_out_transposed, k.v_transposed);
}

void Backward::find_grad(const Strip& t, const Buffers& b) {
  const Queries& q = *t.block->rows;
  const Index tile = t.block->query * kTilesPerBlock + Index(t.tile);
  const TileId bank = b.scores[t.slot % 2];
  const Ref scores = scores_of(t, b), grad = grads_of(t, b);
  if (t.masked > 0) {
    const Ref corner = phase_.at(bank, DType::kFp32, t.queries, row(t.masked), t.keys - t.masked);
    phase_.tensor_tensor(AluOp::kAdd, corner, corner,
                         phase_.at(mask_, DType::kFp32, t.queries, row(t.masked)));
  }
  if (t.edge.keys > 0) {
    const Ref corner = phase_.at(bank, DType::kFp32, t.queries, row(t.edge.keys));
    phase_.tensor_tensor(
        AluOp::kAdd, corner, corner,
        phase_.at(edge_, DType::kFp32, t.queries, row(t.edge.keys), t.edge.column));
  }
  if (a_.mask) {  // scores are scaled where the exponent is taken
    auto& masked = phase_.emit(Engine::kVector, isa::Opcode::kScalarTensorTensor, scores,
                               load_of_scores(*a_.mask, t, b, a_.mask->dtype), scores);
    masked.alu = AluOp::kMultiply;
    masked.imm0 = 1 / a_.scale;
    masked.alu2 = AluOp::kAdd;
  }
  // Differences in the narrow dtype let Vector multiply in its fast mode.
  const Ref p = probabilities_of(t, b),
            difference = phase_.at(b.shifted[t.slot % 2], work_, t.queries, row(t.keys));
  phase_.activation_column(Activation::kExp, p, scores, a_.scale,
                           phase_.at(q.logsumexp, DType::kFp32, t.queries, row(1), tile));
  const Ref delta = phase_.at(q.delta, DType::kFp32, t.queries, row(1), tile),
            out = phase_.at(b.grad[t.slot % kInFlight], work_, t.queries, row(t.keys));
  if (!a_.dropout) {
    phase_.activation_column(Activation::kIdentity, difference, grad, 1, delta);
    return phase_.tensor_tensor(AluOp::kMultiply, out, difference, p);
  }
  // The derivative reaches what was kept; the softmax was of all.
  const Ref kept = load_of_scores(*a_.dropout->kept, t, b, work_);
  phase_.tensor_tensor(AluOp::kMultiply, difference, grad, kept);
  phase_.activation_column(Activation::kIdentity, difference, difference, a_.dropout->factor,
                           delta);
  phase_.tensor_tensor(AluOp::kMultiply, out, difference, p);
  phase_.tensor_tensor(AluOp::kMultiply, p, p, kept);
}

Ref Backward::load_of_scores(const HbmView& view, const Strip& t, const Buffers& b, DType as) {
  const Queries& q = *t.block->rows;
  const Ref part = phase_.at(b.of_scores[t.slot % kInFlight], as, t.queries, row(t.keys));
  phase_.load(part, Phase::hbm(view.buffer, view.dtype, t.queries, view.strides[2],
                               {{view.strides[3], static_cast<std::int32_t>(t.keys)}},
                               heads_.offset(kOfScores, q.head) +
                                   (q.first + first_query(t)) * view.strides[2] +
                                   (first_key(t) + Index(first_)) * view.strides[3]));
  return part;
}

void Backward::use_grad(const Strip& t, const Start& start, const Sums& sums, const Buffers& b) {
  const Queries& q = *t.block->rows;
  const Index natural = t.block->query * (kTilesPerBlock * d_) + Index(t.tile * d_);
  const bool overwrite_first = t.first && start.in_loop;
  const bool accumulate = !(t.first && start.here) || overwrite_first;
  const auto add = [&](TileId sum, TileId rows, TileId moving) {
    phase_.matmul(transposed(sum, t.first_key, t.keys),
                  phase_.at(rows, array_, t.queries, row(d_), natural),
                  phase_.at(moving, array_, t.queries, row(t.keys)), accumulate, overwrite_first);
  };
  const TileId grad = b.grad[t.slot % kInFlight], transposed = b.transposed[t.parity];
  add(sums.grad_v, q.grad_out, b.probabilities[t.slot % kInFlight]);
  std::int64_t at = 0;
  for (const std::int64_t n : tile_sizes(t.keys)) {
    phase_.transpose(phase_.at(b.bank, transposed_, static_cast<int>(n), row(t.queries), at),
                     phase_.at(grad, work_, t.queries, row(n), at));
    at += kTile;
  }
  add(sums.grad_k, q.q, grad);
  const std::int64_t full = t.keys / kTile, rest = t.keys % kTile;
  const auto n = static_cast<std::int32_t>(full);
  if (full > 0) {
    phase_.copy(Engine::kVector,
                phase_.at(transposed, work_, kTile, {{kBlock, n}, {1, t.queries}}, t.tile * kTile),
                phase_.at(b.bank, transposed_, kTile, {{kTile, n}, {1, t.queries}}));
  }
  if (rest > 0) {
    phase_.copy(
        Engine::kVector,
        phase_.at(transposed, work_, static_cast<int>(rest), row(t.queries),
                  full * kBlock + t.tile * kTile),
        phase_.at(b.bank, transposed_, static_cast<int>(rest), row(t.queries), full * kTile));
  }
  if (t.last && t.block->ends) add_sums(*t.block->columns, t.block->key, t.block->keys, sums);
}

void Backward::add_grad_q(const Strip& last, const Buffers& b) {
  const Block& block = *last.block;
  const Keys& k = *block.columns;
  partly_seen(block) ? multiply_tiles(k, last, b) : multiply_block(k, last, b);
  const Ref into = transposed(block.rows->grad_q, block.query * kBlock, block.queries);
  phase_.tensor_tensor(AluOp::kAdd, into, into, transposed(b.grad_q, 0, block.queries));
}

bool Backward::partly_seen(const Block& block) const {
  if (!block.distance) return false;
  const std::int64_t last = *block.distance + block.queries / kTile - 1;
  return *block.distance == 0 || last > window_.tiles();
}

void Backward::multiply_tiles(const Keys& k, const Strip& last, const Buffers& b) {
  const Block& block = *last.block;
  for (std::int64_t tile = 0; tile < block.queries / kTile; ++tile) {
    const auto [from, to] = seen(*block.distance + tile);
    for (std::int64_t t = from; t <= to; ++t) {
      phase_.matmul(
          transposed(b.grad_q, tile * kTile, kTile),
          phase_.at(k.k, array_, kTile, row(d_), block.key * (kTilesPerBlock * d_) + Index(t * d_)),
          phase_.at(b.transposed[last.parity], array_, kTile, row(kTile),
                    (t - from) * kBlock + tile * kTile),
          t > from);
    }
  }
}

void Backward::multiply_block(const Keys& k, const Strip& last, const Buffers& b) {
  const Block& block = *last.block;
  std::int64_t t = 0;
  for (const std::int64_t n : tile_sizes(block.keys)) {
    const std::int64_t from =
        block.diagonal ? t * kTile : 0;  // earlier queries do not see these keys
    const Ref keys = phase_.at(k.k, array_, static_cast<int>(n), row(d_),
                               block.key * (kTilesPerBlock * d_) + Index(t * d_));
    phase_.matmul(transposed(b.grad_q, from, block.queries - from), keys,
                  phase_.at(b.transposed[last.parity], array_, static_cast<int>(n),
                            row(block.queries - from), t * kBlock + from),
                  t > 0);
    ++t;
  }
}

}  // namespace trellis::device::attention::backward
