// The stages of a strip: scores, probabilities, products and the running output.
#include "device/compiler/attention/attention_forward.h"

namespace trellis::device::attention::forward {

std::vector<Forward::Strip> Forward::make_strips(const std::vector<Block>& all) {
  std::vector<Strip> strips;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Block& block = all[i];
    const std::vector<std::int64_t> sizes = tile_sizes(block.queries);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const std::int64_t visible =
          static_cast<std::int64_t>(t) * kTile;  // to all of the tile's queries
      Strip s{block.rows,
              block.columns,
              block.query,
              block.key,
              static_cast<int>(t),
              static_cast<int>(sizes[t]),
              block.keys,
              0,
              0,
              {},
              i * kInFlight + t};
      if (block.diagonal)
        s.keys = std::min(visible + sizes[t], block.keys),
        s.masked = std::max<std::int64_t>(s.keys - visible, 0);
      strips.push_back(s);
    }
  }
  return strips;
}

void Forward::scores(const Strip& s, const Buffers& b) {
  phase_.matmul(scores_of(s, b),
                phase_.at(s.rows->transposed, array_, static_cast<int>(d_), row(s.queries),
                          s.query * kBlock + Index(s.tile * kTile)),
                phase_.at(s.columns->transposed, array_, static_cast<int>(d_), row(s.keys),
                          s.key * kBlock + Index(s.first_key)),
                false);
}

void Forward::softmax(const Strip& s, const Buffers& b) {
  if (s.masked > 0) {
    const Ref corner = phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries,
                                 row(s.masked), s.keys - s.masked);
    phase_.tensor_tensor(AluOp::kSubtract, corner, corner,
                         phase_.at(mask_, DType::kFp32, s.queries, row(s.masked)));
  }
  if (s.edge.keys > 0) {
    const Ref corner =
        phase_.at(b.scores[s.slot % kInFlight], DType::kFp32, s.queries, row(s.edge.keys));
    phase_.tensor_tensor(
        AluOp::kSubtract, corner, corner,
        phase_.at(edge_, DType::kFp32, s.queries, row(s.edge.keys), s.edge.column));
  }
  if (a_.mask)
    phase_.tensor_tensor(AluOp::kSubtract, scores_of(s, b), scores_of(s, b), mask_of(s, b));
  const Ref minimum = minimum_of(s);
  phase_.reduce(AluOp::kMin, minimum, scores_of(s, b), true);
  phase_.activation_column(
      Activation::kExp,
      phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(s.keys)),
      scores_of(s, b), -1, minimum);
  if (a_.dropout) phase_.sum_rows_into(sum_of(s, b));
  phase_.activation_column(Activation::kExp, correction_of(s, b), before_of(s, b), -1, minimum);
}

void Forward::drop(const Strip& s, const Buffers& b) {
  const Ref kept = phase_.at(b.kept[s.slot % 2], work_, s.queries, row(s.keys)),
            p = phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(s.keys));
  phase_.tensor_scalar(kept, drawn_of(s, b), AluOp::kLess, (a_.dropout->keep - 0.5) * 4294967296.0);
  phase_.tensor_tensor(AluOp::kMultiply, p, p, kept);
  if (!a_.dropout->kept) return;
  phase_.store(in_hbm(*a_.dropout->kept, s), kept);
}

Ref Forward::in_hbm(const HbmView& of_scores, const Strip& s) const {
  const Index query = s.rows->first + s.query * kBlock + Index(s.tile * kTile),
              key = s.columns->first + s.key * kBlock + Index(s.first_key);
  const auto& strides = of_scores.strides;
  return Phase::hbm(of_scores.buffer, of_scores.dtype, s.queries, strides[2],
                    {{strides[3], static_cast<std::int32_t>(s.keys)}},
                    heads_.offset(kOfScores, s.rows->head) + query * strides[2] + key * strides[3]);
}

Ref Forward::minimum_of(const Strip& s) const {
  return phase_.at(s.rows->minimum[static_cast<std::size_t>(s.tile)], DType::kFp32, s.queries,
                   row(1), s.query);
}

Ref Forward::out_rows(const Strip& s) {
  return phase_.at(s.rows->out[static_cast<std::size_t>(s.tile)], DType::kFp32, s.queries,
                   row(d_ + 1), s.query * (d_ + 1));
}

void Forward::transpose(const Strip& s, const Buffers& b) {
  std::int64_t at = 0;
  for (const std::int64_t n : tile_sizes(s.keys)) {
    phase_.transpose(phase_.at(b.transposed_bank[s.slot % 2], transposed_, static_cast<int>(n),
                               row(s.queries), at),
                     phase_.at(b.probabilities[s.slot % kInFlight], work_, s.queries, row(n), at));
    at += kTile;
  }
}

void Forward::copy(const Strip& s, const Buffers& b) {
  const Ref out = out_rows(s);
  phase_.emit(corrects_, isa::Opcode::kTensorScalar, out, out, correction_of(s, b)).alu =
      AluOp::kMultiply;
  const TileId bank = b.transposed_bank[s.slot % 2], into = b.transposed[s.slot % kInFlight];
  const Engine engine = s.slot % 2 == 0 ? Engine::kVector : Engine::kScalar;
  const std::int64_t full = s.keys / kTile, rest = s.keys % kTile;
  const Dims tiles{{kTile, static_cast<std::int32_t>(full)}, {1, s.queries}};
  if (full > 0)
    phase_.copy(engine, phase_.at(into, work_, kTile, tiles),
                phase_.at(bank, transposed_, kTile, tiles));
  if (rest == 0) return;
  phase_.copy(engine, phase_.at(into, work_, static_cast<int>(rest), row(s.queries), full * kTile),
              phase_.at(bank, transposed_, static_cast<int>(rest), row(s.queries), full * kTile));
}

void Forward::multiply(const Strip& s, const Buffers& b) {
  std::int64_t t = 0;
  for (const std::int64_t n : tile_sizes(s.keys)) {
    phase_.matmul(product_of(s, b),
                  phase_.at(b.transposed[s.slot % kInFlight], array_, static_cast<int>(n),
                            row(s.queries), t * kTile),
                  phase_.at(s.columns->values, array_, static_cast<int>(n), row(d_ + 1),
                            s.key * (kTilesPerBlock * (d_ + 1)) +
                                Index((s.first_key / kTile + t) * (d_ + 1))),
                  t > 0);
    ++t;
  }
}

void Forward::add(const Strip& s, const Buffers& b) {
  Ref out = out_rows(s), product = product_of(s, b);
  if (a_.dropout) {  // the last column sums what was kept: the denominator is the sum of all
    const TileId tile = s.rows->out[static_cast<std::size_t>(s.tile)];
    const Ref sum =
        phase_.at(tile, DType::kFp32, s.queries, row(1), s.query * (d_ + 1) + Index(d_));
    phase_.tensor_tensor(AluOp::kAdd, sum, sum, sum_of(s, b));
    out = phase_.at(tile, DType::kFp32, s.queries, row(d_), s.query * (d_ + 1));
    product = phase_.at(b.products[s.slot % 2], DType::kFp32, s.queries, row(d_));
  }
  phase_.tensor_tensor(AluOp::kAdd, out, out, product);
}

void Forward::finish(const Head& head, const Index& first, const Queries& q) {
  const std::int64_t columns = q.blocks() * kTilesPerBlock;
  const auto n = static_cast<std::int32_t>(q.blocks());
  const Ref sums = phase_.at(phase_.sbuf(columns * 4), DType::kFp32, kTile, row(columns));
  for (std::int64_t i = 0; i < kTilesPerBlock; ++i) {
    phase_.copy(
        Engine::kVector, phase_.at(sums.tile, DType::kFp32, kTile, {{kTilesPerBlock, n}}, i),
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
      phase_.tensor_column(
          phase_.at(out, a_.out.dtype, p, row(d_), i * d_),
          phase_.at(q.out[static_cast<std::size_t>(i)], DType::kFp32, p, row(d_), b * (d_ + 1)),
          AluOp::kMultiply,
          phase_.at(sums.tile, DType::kFp32, p, row(1), b * kTilesPerBlock + Index(i)),
          a_.dropout ? AluOp::kMultiply : AluOp::kNone, a_.dropout ? a_.dropout->factor : 0);
      ++i;
    }
    store_block(phase_, rows_of(a_.out, heads_.offset(kOut, head), first, q.count), b, count, out);
  });
}

void Forward::store_logsumexp(const Head& head, const Index& first, const Queries& q,
                              const Ref& sums) {
  const HbmView& lse = *a_.logsumexp;
  const std::int64_t columns = q.blocks() * kTilesPerBlock, stride = lse.strides[2];
  const Ref logs = phase_.at(phase_.sbuf(columns * 4), DType::kFp32, kTile, row(columns));
  phase_.activation(Activation::kLog, logs, sums);
  for (std::int64_t i = 0; i < kTilesPerBlock; ++i) {
    const Ref part = phase_.at(logs.tile, DType::kFp32, kTile,
                               {{kTilesPerBlock, static_cast<std::int32_t>(q.blocks())}}, i);
    phase_.tensor_tensor(
        AluOp::kSubtract, part, part,
        phase_.at(q.minimum[static_cast<std::size_t>(i)], DType::kFp32, kTile, row(q.blocks())));
  }
  const Index offset = heads_.offset(kLse, head) + first * stride;
  const auto store = [&](std::int64_t tile, std::int64_t tiles, std::int64_t rows) {
    const int p = static_cast<int>(tiles);
    const Ref out = phase_.at(phase_.sbuf(kTile * 4, depth()), lse.dtype, p, row(rows));
    phase_.scope([&] {
      const Ref transposed = phase_.at(phase_.psum(), DType::kFp32, p, row(rows));
      phase_.transpose(
          transposed, phase_.at(logs.tile, DType::kFp32, static_cast<int>(rows), row(tiles), tile));
      phase_.copy(Engine::kScalar, out, transposed);
    });
    const Dims line{{stride, static_cast<std::int32_t>(rows)}};
    phase_.store(Phase::hbm(lse.buffer, lse.dtype, p, kTile * stride, line,
                            offset + Index(tile * kTile * stride)),
                 out);
  };
  const std::int64_t full = q.count / kTile, rest = q.count % kTile;
  if (full > 0) store(0, full, kTile);
  if (rest > 0) store(full, 1, rest);
}

}  // namespace trellis::device::attention::forward
