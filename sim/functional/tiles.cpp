#include "sim/functional/tiles.h"

#include <algorithm>
#include <optional>

namespace trellis::sim::functional {

using isa::AccessPattern;
using isa::Activation;
using isa::AluOp;
using isa::Instruction;
using isa::Opcode;
using View = Memory::View;

namespace {

bool is_float(const AccessPattern& a) {
  if (!a.present()) return true;
  switch (a.dtype) {
    case DType::kFp32:
    case DType::kBf16:
    case DType::kFp16:
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16: return true;  // fp32 holds all of their values
    default: return false;
  }
}

/// True when fp32 holds every operand's values, and some stage rounds.
bool fits(const Instruction& i) {
  return is_float(i.dst) && is_float(i.src0) && is_float(i.src1) && is_float(i.dst1) &&
         !is_whole(i) && i.mode == isa::MatmulMode::kDense;
}

using Row = std::vector<float>;

/// to[e] = a[e] alu b(e), rounded to fp32. Quotients, sums and products of two fp32 numbers have
/// the same bits in fp32 as rounded from double.
template <typename B>
void stage(AluOp alu, Row& a, B b) {
  const auto each = [&a, &b](auto op) {
    for (std::size_t e = 0; e < a.size(); ++e) a[e] = op(a[e], b(e));
  };
  switch (alu) {
    case AluOp::kNone:
    case AluOp::kBypass: return;
    case AluOp::kAdd: return each([](float x, float y) { return x + y; });
    case AluOp::kSubtract: return each([](float x, float y) { return x - y; });
    case AluOp::kReverseSubtract: return each([](float x, float y) { return y - x; });
    case AluOp::kMultiply: return each([](float x, float y) { return x * y; });
    case AluOp::kDivide: return each([](float x, float y) { return x / y; });
    default:
      return each([alu](float x, float y) {
        return static_cast<float>(apply(alu, static_cast<double>(x), static_cast<double>(y)));
      });
  }
}

void activate(Activation fn, Row& a) {
  switch (fn) {
    case Activation::kIdentity: return;
    case Activation::kSquare:
      for (float& x : a) x *= x;
      return;
    case Activation::kExp:
      for (float& x : a) x = static_cast<float>(std::exp(static_cast<double>(x)));
      return;
    default:
      for (float& x : a) x = static_cast<float>(apply(fn, static_cast<double>(x)));
  }
}

class Tiles {
 public:
  Tiles(const Instruction& instruction, EngineState& state, Memory& memory)
      : i_(instruction),
        state_(state),
        memory_(memory),
        imm0_(static_cast<float>(instruction.imm0)),
        imm1_(static_cast<float>(instruction.imm1)) {}

  void load_stationary() {
    const View from = memory_.view(i_.src0);
    state_.weight_columns = from.elements();
    state_.weights.clear();
    state_.tile = rows(from, i_.src0.num_partitions);
  }

  void matmul() {
    const View to = memory_.view(i_.dst);
    const Row moving = rows(memory_.view(i_.src0), i_.src0.num_partitions);
    const std::int64_t columns = i_.src0.elements_per_partition();
    Row sums(static_cast<std::size_t>(i_.dst.num_partitions * columns), 0.0f);
    if (i_.accumulate) sums = rows(to, i_.dst.num_partitions);
    multiply_add(state_.tile.data(), state_.weight_columns, moving.data(), i_.src0.num_partitions,
                 i_.dst.num_partitions, columns, sums.data());
    for (std::int64_t m = 0; m < i_.dst.num_partitions; ++m)
      to.scatter(m, sums.data() + m * columns);
  }

  void transpose() {
    const View from = memory_.view(i_.src0), to = memory_.view(i_.dst);
    const std::int64_t columns = from.elements(), lines = i_.src0.num_partitions;
    const Row all = rows(from, lines);
    Row line(static_cast<std::size_t>(lines));
    for (std::int64_t e = 0; e < columns; ++e) {
      for (std::int64_t p = 0; p < lines; ++p)
        line[static_cast<std::size_t>(p)] = all[static_cast<std::size_t>(p * columns + e)];
      for (std::int64_t p = 0; p < lines; ++p)
        to.set(e, p, static_cast<double>(line[static_cast<std::size_t>(p)]));
    }
  }

  void reduce() {
    const View from = memory_.view(i_.src0), to = memory_.view(i_.dst);
    const auto results = static_cast<std::size_t>(to.elements());
    const auto n = static_cast<std::size_t>(from.elements()) / results;
    Row row(n * results), out(results);
    for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
      from.gather(p, row.data());
      if (i_.accumulate) to.gather(p, out.data());
      for (std::size_t r = 0; r < results; ++r) {
        const float* values = row.data() + r * n;
        out[r] =
            fold(i_.accumulate ? out[r] : values[0], values + (i_.accumulate ? 0 : 1), values + n);
      }
      to.scatter(p, out.data());
    }
  }

  void elementwise() {
    const View to = memory_.view(i_.dst);
    const std::optional<View> from = present(i_.src0), other = present(i_.src1);
    const auto width = static_cast<std::size_t>(to.elements());
    // A row is read whole before it is written: an instruction may work in place.
    Row row(width), second(other ? static_cast<std::size_t>(other->elements()) : 0);
    for (std::int64_t p = 0; p < i_.dst.num_partitions; ++p) {
      if (from) from->gather(p, row.data());
      if (other) other->gather(p, second.data());
      compute(row, second);
      to.scatter(p, row.data());
      if (i_.dst1.present()) add_up(p, row);
    }
  }

 private:
  static Row rows(const View& view, std::int64_t partitions) {
    Row all(static_cast<std::size_t>(view.elements() * partitions));
    for (std::int64_t p = 0; p < partitions; ++p) view.gather(p, all.data() + p * view.elements());
    return all;
  }
  [[nodiscard]] std::optional<View> present(const AccessPattern& a) {
    return a.present() ? std::optional(memory_.view(a)) : std::nullopt;
  }
  [[nodiscard]] float fold(float start, const float* begin, const float* end) const {
    if (i_.alu == AluOp::kAdd) {
      for (; begin != end; ++begin) start += *begin;
      return start;
    }
    for (; begin != end; ++begin)
      start = static_cast<float>(
          apply(i_.alu, static_cast<double>(start), static_cast<double>(*begin)));
    return start;
  }
  void add_up(std::int64_t p, const Row& row) {
    float sum = i_.accumulate ? static_cast<float>(memory_.get(i_.dst1, p, 0)) : 0.0f;
    for (const float x : row) sum += x;
    memory_.set(i_.dst1, p, 0, static_cast<double>(sum));
  }
  void compute(Row& row, const Row& second) const {
    const bool has_second = !second.empty();
    const auto all = [&second](std::size_t e) { return second[e]; };
    const auto constant = [](float value) { return [value](std::size_t) { return value; }; };
    switch (i_.opcode) {
      case Opcode::kTensorTensor: return stage(i_.alu, row, all);
      case Opcode::kTensorScalar:
        stage(i_.alu, row, constant(has_second ? second[0] : imm0_));
        return stage(i_.alu2, row, constant(second.size() == 2 ? second[1] : imm1_));
      case Opcode::kScalarTensorTensor:
        stage(i_.alu, row, constant(imm0_));
        return stage(i_.alu2, row, all);
      case Opcode::kActivation: {
        const float scale = imm0_, bias = has_second ? second[0] : imm1_;
        for (float& x : row) x = scale * x + bias;
        return activate(i_.activation, row);
      }
      case Opcode::kExponential:
        for (float& x : row) x -= second[0];
        return activate(Activation::kExp, row);
      case Opcode::kSelect:
        for (std::size_t e = 0; e < row.size(); ++e) row[e] = second[e] != 0 ? row[e] : imm0_;
        return;
      case Opcode::kMemset: std::fill(row.begin(), row.end(), imm0_); return;
      default: return;  // a copy
    }
  }

  const Instruction& i_;
  EngineState& state_;
  Memory& memory_;
  float imm0_, imm1_;
};

/// True when reading a row of `a` whole before the row of dst is written changes nothing.
bool reads_first(const AccessPattern& a, const AccessPattern& dst) {
  return !a.present() || a.buffer != dst.buffer ||
         (a.offset == dst.offset && a.dims == dst.dims && a.dtype == dst.dtype);
}

/// Elsewhere the order of its elements is part of its result.
bool is_row_by_row(const Instruction& i) {
  return (!i.src0.present() || i.src0.elements_per_partition() == i.dst.elements_per_partition()) &&
         reads_first(i.src0, i.dst) && reads_first(i.src1, i.dst) &&
         (!i.dst1.present() || (i.dst1.buffer != i.dst.buffer && i.dst1.buffer != i.src0.buffer));
}

}  // namespace

bool execute_tiles(const Instruction& i, EngineState& state, Memory& memory) {
  if (!fits(i)) return false;
  Tiles tiles(i, state, memory);
  switch (i.opcode) {
    case Opcode::kLoadStationary: tiles.load_stationary(); return true;
    case Opcode::kMatmul:
      if (state.tile.empty()) return false;
      tiles.matmul();
      return true;
    case Opcode::kTranspose:
      if (i.src0.buffer == i.dst.buffer) return false;
      tiles.transpose();
      return true;
    case Opcode::kTensorReduce:
      if (i.src0.buffer == i.dst.buffer) return false;
      tiles.reduce();
      return true;
    case Opcode::kTensorTensor:
    case Opcode::kTensorScalar:
    case Opcode::kScalarTensorTensor:
    case Opcode::kTensorCopy:
    case Opcode::kActivation:
    case Opcode::kExponential:
    case Opcode::kSelect:
    case Opcode::kMemset:
      if (!is_row_by_row(i)) return false;
      tiles.elementwise();
      return true;
    default: return false;
  }
}

}  // namespace trellis::sim::functional
