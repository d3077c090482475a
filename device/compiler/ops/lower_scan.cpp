// Running sums: along rows on the Vector engine, down columns as products with a triangle of ones.
#include <algorithm>

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

constexpr std::int64_t kScanned = 2048;  ///< elements of a row at a time

std::int32_t extent(std::int64_t n) { return static_cast<std::int32_t>(n); }

class RunningSum {
 public:
  RunningSum(std::uint32_t kernel, const Grid& in, const Grid& out)
      : in_(in), out_(out), phase_(kernel) {}

  /// [rows, columns], a row on each partition; what it has summed goes on from piece to piece.
  Phase along_rows() {
    const Ref ones = sums(kP, kScanned);
    phase_.memset(ones, 1);
    phase_.tiles(in_.rows, kP, [&](const Index& first, std::int64_t rows) {
      const TileId so_far = phase_.sbuf(4);
      const Ref carry = phase_.at(so_far, DType::kFp32, static_cast<int>(rows), row(1));
      phase_.memset(carry, 0);
      phase_.tiles(in_.columns, kScanned, [&](const Index& at, std::int64_t width) {
        const Ref data = loaded(rows, width, in_rows(in_, first, at, rows, width));
        const Ref sum = sums(rows, width);
        auto& scan = phase_.emit(
            Engine::kVector, Opcode::kTensorTensorScan, sum,
            phase_.at(ones.tile, DType::kFp32, static_cast<int>(rows), row(width)), data);
        scan.alu = AluOp::kMultiply;
        scan.alu2 = AluOp::kAdd;
        phase_.tensor_column(sum, sum, AluOp::kAdd, carry);
        phase_.copy(
            Engine::kVector, carry,
            phase_.at(sum.tile, DType::kFp32, static_cast<int>(rows), row(1), Index(width - 1)));
        stored(sum, rows, width, in_rows(out_, first, at, rows, width));
      });
    });
    return std::move(phase_);
  }

  /// Elements of a column at a distance, columns next to each other: 128 elements of up to 512
  /// columns are triangleᵀ · block + the last line of the block before.
  Phase down_columns() {
    make_triangle();
    phase_.tiles(in_.rows, kMoving, [&](const Index& first, std::int64_t width) {
      const Ref before = sums(kP, width);
      phase_.memset(before, 0);
      phase_.tiles(in_.columns, kP, [&](const Index& at, std::int64_t lines) {
        const Ref data = loaded(lines, width, in_columns(in_, first, at, lines, width));
        const Ref bank =
            phase_.at(phase_.psum(2), DType::kFp32, static_cast<int>(lines), row(width));
        phase_.matmul(bank, part(triangle_, lines, lines), data, false);
        phase_.matmul(bank, part(last_line_, kP, lines), before, true);
        const Ref sum = phase_.at(before.tile, DType::kFp32, static_cast<int>(lines), row(width));
        phase_.copy(Engine::kVector, sum, bank);
        stored(sum, lines, width, in_columns(out_, first, at, lines, width));
      });
    });
    return std::move(phase_);
  }

 private:
  Ref sums(std::int64_t partitions, std::int64_t width) {
    return phase_.at(phase_.sbuf(width * 4), DType::kFp32, static_cast<int>(partitions),
                     row(width));
  }
  [[nodiscard]] Ref part(TileId tile, std::int64_t partitions, std::int64_t columns) const {
    return phase_.at(tile, DType::kFp32, static_cast<int>(partitions), row(columns));
  }

  /// In fp32: sums are, whatever the tensor's type.
  Ref loaded(std::int64_t partitions, std::int64_t width, const Ref& from) {
    const DType dtype = in_.view.dtype;
    const Ref raw = phase_.at(phase_.sbuf(width * isa::size_bytes(dtype), 2), dtype,
                              static_cast<int>(partitions), row(width));
    phase_.load(raw, from);
    if (dtype == DType::kFp32) return raw;
    const Ref data = sums(partitions, width);
    phase_.copy(Engine::kScalar, data, raw);
    return data;
  }
  void stored(const Ref& sum, std::int64_t partitions, std::int64_t width, const Ref& to) {
    const DType dtype = out_.view.dtype;
    const Ref result = phase_.at(phase_.sbuf(width * isa::size_bytes(dtype), 2), dtype,
                                 static_cast<int>(partitions), row(width));
    phase_.copy(Engine::kScalar, result, sum);
    phase_.store(to, result);
  }

  [[nodiscard]] static Ref in_rows(const Grid& g, const Index& first, const Index& at,
                                   std::int64_t rows, std::int64_t width) {
    return Phase::hbm(g.view.buffer, g.view.dtype, static_cast<int>(rows), g.row_stride,
                      {{g.column_stride, extent(width)}},
                      Index(g.view.offset) + first * g.row_stride + at * g.column_stride);
  }
  [[nodiscard]] static Ref in_columns(const Grid& g, const Index& first, const Index& at,
                                      std::int64_t lines, std::int64_t width) {
    return Phase::hbm(g.view.buffer, g.view.dtype, static_cast<int>(lines), g.column_stride,
                      {{g.row_stride, extent(width)}},
                      Index(g.view.offset) + first * g.row_stride + at * g.column_stride);
  }

  /// triangle[k, m] = k ≤ m, last_line[k, m] = k is the last partition.
  void make_triangle() {
    triangle_ = phase_.sbuf(kP * 4);
    last_line_ = phase_.sbuf(kP * 4);
    const Ref triangle = part(triangle_, kP, kP), last = part(last_line_, kP, kP),
              partition = sums(kP, 1), first = sums(kP, 1);
    phase_.emit(Engine::kGpSimd, Opcode::kIota, triangle).imm1 = 1;
    phase_.emit(Engine::kGpSimd, Opcode::kIota, partition).imm1 = 1;
    phase_.emit(Engine::kGpSimd, Opcode::kIota, first).imm1 = static_cast<double>(kP);
    phase_.tensor_column(triangle, triangle, AluOp::kSubtract, first);
    phase_.tensor_column(triangle, triangle, AluOp::kGreaterEqual, partition);
    phase_.memset(last, 1);
    phase_.tensor_scalar(partition, partition, AluOp::kEqual, static_cast<double>(kP - 1));
    phase_.tensor_column(last, last, AluOp::kMultiply, partition);
  }

  Grid in_, out_;
  Phase phase_;
  TileId triangle_ = 0, last_line_ = 0;
};

bool is_summed(DType d) {
  return d == DType::kFp32 || d == DType::kBf16 || d == DType::kFp16 || d == DType::kInt32 ||
         d == DType::kBool || d == DType::kUInt8 || d == DType::kInt8;
}

}  // namespace

void lower_cumsum(Lowering& lowering, const Node& node, std::uint32_t index) {
  const std::int64_t dim = Scalars(node.scalars).integer("dim", 0);
  const HbmView from = lowering.input(node, 0), to = lowering.output(node, 0);
  const auto in = grid_along(from, dim), out = grid_along(to, dim);
  if (!in || !out || !is_summed(from.dtype) || !is_summed(to.dtype))
    return lower_estimate(lowering, node, index, lowering.builder().core().passes.scan);
  RunningSum sum(lowering.kernel("cumsum", index, from.elements()), *in, *out);
  const bool lies_across = in->column_stride != 1 && in->row_stride == 1 && out->row_stride == 1;
  lowering.builder().append(lies_across ? sum.down_columns() : sum.along_rows());
}

}  // namespace trellis::device
