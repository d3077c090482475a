// Operations whose addresses are data: DMA gathers and scatter-adds by index tiles.
#include <algorithm>
#include <optional>

#include "device/compiler/gemm/array_sizes.h"
#include "device/compiler/graph/recipe.h"
#include "device/compiler/ops/index_tiles.h"
#include "device/compiler/ops/lowering.h"

namespace trellis::device {
namespace {

using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Opcode;

/// Rows of a table in HBM: `width` contiguous elements every `stride`.
struct Rows {
  HbmView view;
  std::int64_t stride = 0, width = 0;
};

std::optional<Rows> as_rows(const HbmView& table) {
  if (table.rank() == 0) return std::nullopt;
  Rows rows{table, table.strides[0], 1};
  for (std::size_t d = 1; d < table.rank(); ++d) rows.width *= table.sizes[d];
  if (rows.width > 1 && flat_stride(table, 1) != 1) return std::nullopt;
  return rows;
}

Ref table_row(const Rows& rows, std::int64_t column, std::int64_t columns) {
  return Phase::hbm(rows.view.buffer, rows.view.dtype, 1, rows.stride,
                    {{1, static_cast<std::int32_t>(columns)}}, Index(rows.view.offset + column));
}

/// body(column, columns) for pieces of a row that SBUF takes.
template <typename Body>
void row_pieces(const Rows& rows, Body body) {
  constexpr std::int64_t kWidest = 8192;
  for (std::int64_t c = 0; c < rows.width; c += kWidest) body(c, std::min(kWidest, rows.width - c));
}

void gather_rows(Phase& phase, const Rows& table, const HbmView& indices, std::int64_t index_stride,
                 const Rows& out) {
  for (const Span& s : spans(indices.elements())) {
    phase.scope([&] {
      const Ref index = load_span(phase, indices, index_stride, s);
      row_pieces(table, [&](std::int64_t c, std::int64_t columns) {
        phase.loop(s.per, [&](const Index& t) {
          const Ref rows = phase.at(phase.sbuf(columns * isa::size_bytes(table.view.dtype), 3),
                                    table.view.dtype, s.partitions, row(columns));
          // Scalar starts the gathers, so that neither loads nor stores wait after them.
          auto& gather =
              phase.emit(Engine::kScalar, Opcode::kDmaGather, rows, table_row(table, c, columns),
                         phase.at(index.tile, DType::kInt32, s.partitions, row(1), t));
          gather.dma_queue = isa::DmaQueue::kLoad;
          phase.store(
              Phase::hbm(out.view.buffer, out.view.dtype, s.partitions, s.per * out.stride,
                         {{1, static_cast<std::int32_t>(columns)}},
                         Index(out.view.offset + s.first * out.stride + c) + t * out.stride),
              rows);
        });
      });
    });
  }
}

/// out row index[i] += source row i; rows whose index is `skip` add nothing.
void scatter_rows(Phase& phase, const Rows& source, const HbmView& indices,
                  std::int64_t index_stride, const Rows& out, std::optional<double> skip,
                  double alpha) {
  for (const Span& s : spans(indices.elements())) {
    phase.scope([&] {
      const Ref index = load_span(phase, indices, index_stride, s);
      const TileId keep = phase.sbuf(s.per * 4);
      if (skip)
        phase.tensor_scalar(phase.at(keep, DType::kFp32, s.partitions, row(s.per)), index,
                            AluOp::kNotEqual, *skip, AluOp::kMultiply, alpha);
      row_pieces(source, [&](std::int64_t c, std::int64_t columns) {
        phase.loop(s.per, [&](const Index& t) {
          const Ref rows = phase.at(phase.sbuf(columns * isa::size_bytes(source.view.dtype), 3),
                                    source.view.dtype, s.partitions, row(columns));
          phase.load(rows,
                     Phase::hbm(source.view.buffer, source.view.dtype, s.partitions,
                                s.per * source.stride, {{1, static_cast<std::int32_t>(columns)}},
                                Index(source.view.offset + s.first * source.stride + c) +
                                    t * source.stride));
          if (skip)
            phase.tensor_column(rows, rows, AluOp::kMultiply,
                                phase.at(keep, DType::kFp32, s.partitions, row(1), t));
          if (!skip && alpha != 1) phase.tensor_scalar(rows, rows, AluOp::kMultiply, alpha);
          auto& scatter =
              phase.emit(Engine::kGpSimd, Opcode::kDmaScatterAdd, table_row(out, c, columns), rows,
                         phase.at(index.tile, DType::kInt32, s.partitions, row(1), t));
          scatter.dma_queue = isa::DmaQueue::kStore;
        });
      });
    });
  }
}

/// out row index[i] = 0, by adding what is there with the other sign: a scatter only adds. Rows
/// occur once, as index_put asks for without accumulation, and are finite.
void clear_rows(Phase& phase, const Rows& out, const HbmView& indices, std::int64_t index_stride) {
  for (const Span& s : spans(indices.elements())) {
    phase.scope([&] {
      const Ref index = load_span(phase, indices, index_stride, s);
      row_pieces(out, [&](std::int64_t c, std::int64_t columns) {
        phase.loop(s.per, [&](const Index& t) {
          const Ref rows = phase.at(phase.sbuf(columns * isa::size_bytes(out.view.dtype), 3),
                                    out.view.dtype, s.partitions, row(columns));
          const Ref place = phase.at(index.tile, DType::kInt32, s.partitions, row(1), t);
          auto& gather = phase.emit(Engine::kScalar, Opcode::kDmaGather, rows,
                                    table_row(out, c, columns), place);
          gather.dma_queue = isa::DmaQueue::kLoad;
          phase.tensor_scalar(rows, rows, AluOp::kMultiply, -1);
          auto& scatter = phase.emit(Engine::kGpSimd, Opcode::kDmaScatterAdd,
                                     table_row(out, c, columns), rows, place);
          scatter.dma_queue = isa::DmaQueue::kStore;
        });
      });
    });
  }
}

// ── cross-entropy: one element per row of the logits ──

struct Targets {
  HbmView logits, target;
  std::int64_t rows = 1, row_stride = 0, column_stride = 1, target_stride = 1;
  double ignored = -100;
};

Targets targets_of(Lowering& lowering, const HbmView& logits, const HbmView& target,
                   const Node& node) {
  (void)lowering;
  Targets t{logits, target};
  t.rows = logits.rank() == 2 ? logits.sizes[0] : 1;
  t.row_stride = logits.rank() == 2 ? logits.strides[0] : 0;
  t.column_stride = logits.strides.back();
  t.target_stride = target.rank() == 1 ? target.strides[0] : 1;
  t.ignored = Scalars(node.scalars).number("ignore_index", -100);
  return t;
}

struct TargetTiles {
  Ref valid;     ///< fp32: 1 where the target counts
  Ref position;  ///< int32: element of the logits
};

TargetTiles locate_targets(Phase& phase, const Targets& t, const Span& s) {
  const Ref target = load_span(phase, t.target, t.target_stride, s);
  const auto tile = [&](DType dtype) {
    return phase.at(phase.sbuf(s.per * 4), dtype, s.partitions, row(s.per));
  };
  TargetTiles out{tile(DType::kFp32), tile(DType::kInt32)};
  const Ref first = tile(DType::kInt32), column = tile(DType::kInt32);
  auto& iota = phase.emit(Engine::kGpSimd, Opcode::kIota,
                          first);  // the row number of every entry, times the row stride
  iota.imm0 = static_cast<double>(s.first * t.row_stride);
  iota.imm1 = static_cast<double>(t.row_stride);
  phase.tensor_scalar(out.valid, target, AluOp::kNotEqual, t.ignored);
  phase.tensor_scalar(column, target, AluOp::kMax, 0, AluOp::kMultiply,
                      static_cast<double>(t.column_stride));
  phase.tensor_tensor(AluOp::kAdd, out.position, column, first);
  return out;
}

/// Sum over partitions of an fp32 column.
Ref total(Phase& phase, TileId column) {
  const Ref transposed = phase.at(phase.psum(), DType::kFp32, 1, row(kP));
  phase.transpose(transposed, phase.at(column, DType::kFp32, kP, row(1)));
  const Ref sum = phase.at(phase.sbuf(4), DType::kFp32, 1, row(1));
  phase.reduce(AluOp::kAdd, sum, transposed);
  return sum;
}

void store_scalar(Phase& phase, const HbmView& target, const Ref& value) {
  Ref cast = phase.at(phase.sbuf(4), target.dtype, 1, row(1));
  phase.copy(Engine::kVector, cast, value);
  phase.store(Phase::hbm(target.buffer, target.dtype, 1, 0, row(1), Index(target.offset)), cast);
}

}  // namespace

void lower_rows_gather(Lowering& lowering, const Node& node, std::uint32_t index) {
  const std::string name = plain_name(node.op);
  const auto estimate = [&] {
    lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  };
  if (node.inputs.size() != 2) return estimate();
  if (name == "index_select" && Scalars(node.scalars).integer("dim", 0) != 0) return estimate();
  const HbmView indices = lowering.input(node, 1), out = lowering.output(node, 0);
  const auto table = as_rows(lowering.input(node, 0));
  const auto stride = flat_stride(indices);
  const auto out_stride = flat_stride(out);
  if (!table || !stride || out_stride != 1 || indices.dtype != DType::kInt32) return estimate();
  Phase phase(lowering.kernel(name, index, 0));
  gather_rows(phase, *table, indices, *stride, {out, table->width, table->width});
  lowering.builder().append(std::move(phase));
}

void lower_embedding_backward(Lowering& lowering, const Node& node, std::uint32_t index) {
  const HbmView grad = lowering.input(node, 0), indices = lowering.input(node, 1),
                out = lowering.output(node, 0);
  const auto target = as_rows(out);
  const auto stride = flat_stride(indices), grad_stride = flat_stride(grad);
  if (!target || !stride || grad_stride != 1)
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  const auto kernel = lowering.kernel(plain_name(node.op), index, grad.elements());
  fill_view(lowering, kernel, out, 0);
  const std::int64_t padding = Scalars(node.scalars).integer("padding_idx", -1);
  Phase phase(kernel);
  scatter_rows(phase, {grad, target->width, target->width}, indices, *stride, *target,
               padding >= 0 ? std::optional<double>(padding) : std::nullopt, 1);
  lowering.builder().append(std::move(phase));
}

void lower_rows_add(Lowering& lowering, const Node& node, std::uint32_t index) {
  const Scalars scalars(node.scalars);
  const std::string name = plain_name(node.op);
  const bool is_put = name.ends_with("index_put") || name == "_index_put_impl",
             puts = is_put && !scalars.flag("accumulate", false);
  const bool rows = is_put || (name == "index_add" && scalars.integer("dim", 0) == 0);
  if (!rows || node.inputs.size() != 3)
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  const HbmView self = lowering.input(node, 0), indices = lowering.input(node, 1),
                source = lowering.input(node, 2), out = lowering.output(node, 0);
  const auto target = as_rows(out), from = as_rows(source);
  const auto stride = flat_stride(indices);
  if (!target || !from || !stride || indices.rank() != 1 || indices.dtype != DType::kInt32 ||
      from->width != target->width || source.dtype != out.dtype) {
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  }
  const auto kernel = lowering.kernel(name, index, source.elements());
  if (self.buffer != out.buffer) copy_view(lowering, kernel, out, self);
  if (puts) {
    Phase phase(kernel);
    clear_rows(phase, *target, indices, *stride);
    lowering.builder().append(std::move(phase));
  }
  Phase phase(kernel);
  scatter_rows(phase, *from, indices, *stride, *target, std::nullopt, scalars.number("alpha", 1));
  lowering.builder().append(std::move(phase));
}

void lower_nll_loss(Lowering& lowering, const Node& node, std::uint32_t index) {
  if (node.inputs.size() != 2)
    return lower_estimate(lowering, node, index,
                          lowering.builder().core().passes.scan);  // class weights
  const Targets t = targets_of(lowering, lowering.input(node, 0), lowering.input(node, 1), node);
  const std::int64_t reduction = Scalars(node.scalars).integer("reduction", 1);
  const HbmView out = lowering.output(node, 0);
  Phase phase(lowering.kernel(plain_name(node.op), index, t.rows));
  const TileId losses = phase.sbuf(4), counts = phase.sbuf(4);
  for (TileId acc : {losses, counts}) phase.memset(phase.at(acc, DType::kFp32, kP, row(1)), 0);
  for (const Span& s : spans(t.rows)) {
    phase.scope([&] {
      const TargetTiles where = locate_targets(phase, t, s);
      const Ref picked = phase.at(phase.sbuf(s.per * 4), t.logits.dtype, s.partitions, row(s.per));
      auto& gather = phase.emit(Engine::kScalar, Opcode::kDmaGather, picked,
                                single_elements(t.logits), where.position);
      gather.dma_queue = isa::DmaQueue::kLoad;
      const Ref loss = phase.at(phase.sbuf(s.per * 4), reduction == 0 ? out.dtype : DType::kFp32,
                                s.partitions, row(s.per));
      const Ref negative = phase.at(phase.sbuf(s.per * 4), DType::kFp32, s.partitions, row(s.per));
      phase.tensor_scalar(negative, picked, AluOp::kMultiply, -1);
      phase.tensor_tensor(AluOp::kMultiply, loss, negative, where.valid);
      if (reduction == 0)
        return phase.store(span_of(out, out.strides.empty() ? 1 : out.strides[0], s), loss);
      phase.reduce(AluOp::kAdd, phase.at(losses, DType::kFp32, s.partitions, row(1)), loss, true);
      phase.reduce(AluOp::kAdd, phase.at(counts, DType::kFp32, s.partitions, row(1)), where.valid,
                   true);
    });
  }
  if (reduction != 0) {
    const Ref loss = total(phase, losses), count = total(phase, counts);
    if (reduction == 1) phase.tensor_tensor(AluOp::kDivide, loss, loss, count);
    store_scalar(phase, out, loss);
    if (node.outputs.size() > 1) store_scalar(phase, lowering.output(node, 1), count);
  }
  lowering.builder().append(std::move(phase));
}

/// grad_output, logits, target, total_weight
void lower_nll_loss_backward(Lowering& lowering, const Node& node, std::uint32_t index) {
  if (node.inputs.size() != 4)
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  const HbmView grad = lowering.input(node, 0), weight = lowering.input(node, 3),
                out = lowering.output(node, 0);
  const Targets t = targets_of(lowering, out, lowering.input(node, 2), node);
  const std::int64_t reduction = Scalars(node.scalars).integer("reduction", 1);
  const auto kernel = lowering.kernel(plain_name(node.op), index, t.rows);
  fill_view(lowering, kernel, out, 0);
  Phase phase(kernel);
  const auto column = [&](const HbmView& scalar) {
    const Ref tile = phase.at(phase.sbuf(4), scalar.dtype, kP, row(1));
    phase.load(tile, Phase::hbm(scalar.buffer, scalar.dtype, kP, 0, row(1), Index(scalar.offset)));
    return tile;
  };
  const Ref scale = phase.at(phase.sbuf(4), DType::kFp32, kP, row(1));
  if (reduction == 0) {
    phase.memset(scale, -1);
  } else {
    phase.tensor_scalar(scale, column(grad), AluOp::kMultiply, -1);
    if (reduction == 1) phase.tensor_tensor(AluOp::kDivide, scale, scale, column(weight));
  }
  for (const Span& s : spans(t.rows)) {
    phase.scope([&] {
      const TargetTiles where = locate_targets(phase, t, s);
      Ref value = where.valid;
      if (reduction == 0) {
        const Ref grads = load_span(phase, grad, grad.strides.empty() ? 1 : grad.strides[0], s);
        phase.tensor_tensor(AluOp::kMultiply, value, value, grads);
      }
      const Ref out_value = phase.at(phase.sbuf(s.per * 4), out.dtype, s.partitions, row(s.per));
      Ref factor = scale;
      factor.pattern.num_partitions = static_cast<std::uint16_t>(s.partitions);
      phase.tensor_column(out_value, value, AluOp::kMultiply, factor);
      auto& scatter = phase.emit(Engine::kGpSimd, Opcode::kDmaScatterAdd, single_elements(out),
                                 out_value, where.position);
      scatter.dma_queue = isa::DmaQueue::kStore;
    });
  }
  lowering.builder().append(std::move(phase));
}

}  // namespace trellis::device
