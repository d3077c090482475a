#include "sim/functional/exact.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <stdexcept>

namespace trellis::sim::functional {

using isa::AccessPattern;
using isa::Instruction;
using isa::MatmulMode;
using isa::Opcode;
using View = Memory::View;

namespace {

constexpr int kMxPacked = 4, kMxScaleRows = 8;  // a scale belongs to 4 values of 8 partitions
constexpr std::uint32_t kLowHalf = 0x7ff;       // of fp32: MatmulMode::kFp32High keeps 12 bits
constexpr std::int64_t kPartitionGroup = 16;    // GpSimd's cores have 16 partitions each

bool holds_whole(DType dtype) {
  switch (dtype) {
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
    case DType::kInt64: return true;
    default: return false;
  }
}

/// One instruction over one memory.
class Exact {
 public:
  Exact(const Instruction& instruction, EngineState& state, Memory& memory, Arithmetic arithmetic)
      : i_(instruction),
        state_(state),
        memory_(memory),
        rounds_(arithmetic == Arithmetic::kFp32 && !functional::is_whole(instruction)),
        imm0_(round(instruction.imm0)),
        imm1_(round(instruction.imm1)) {}
  void run();

 private:
  [[nodiscard]] double round(double value) const {
    return rounds_ ? static_cast<double>(static_cast<float>(value)) : value;
  }
  [[nodiscard]] double stage(isa::AluOp alu, double a, double b) const {
    return round(apply(alu, a, b));
  }
  void transfer();
  void transfer_rows();
  void elementwise();
  [[nodiscard]] double element(std::int64_t p, std::int64_t e, double a, const View* other) const;
  void scan();
  void reduce();
  void transpose();
  void quantize();
  void eight();
  void batch_stats();
  void batch_aggregate();
  void top_k();
  void local_gather();
  void load_stationary();
  void matmul();
  /// A product with the identity: the weights' bits, transposed.
  void pass_through();
  /// src0 as the array reads it, [contraction][column]; packed MX elements are four rows, times
  /// their scales in src1.
  [[nodiscard]] Values contraction_rows();
  [[nodiscard]] double get(const AccessPattern& a, std::int64_t p, std::int64_t e) const {
    return memory_.get(a, p, e);
  }
  void set(const AccessPattern& a, std::int64_t p, std::int64_t e, double value) {
    memory_.set(a, p, e, value);
  }

  const Instruction& i_;
  EngineState& state_;
  Memory& memory_;
  bool rounds_;
  double imm0_, imm1_;
};

void Exact::transfer() {
  // Rows may be cut differently on both sides: only the linear order counts. All is read before
  // anything is written.
  const View from = memory_.view(i_.src0), to = memory_.view(i_.dst);
  if (from.dtype() == to.dtype()) {  // bits move as they are
    const auto size = static_cast<std::size_t>(isa::size_bytes(from.dtype()));
    const std::size_t row_in = static_cast<std::size_t>(from.elements()) * size,
                      row_out = static_cast<std::size_t>(to.elements()) * size;
    std::vector<std::uint8_t> bytes(row_in * i_.src0.num_partitions);
    for (std::size_t p = 0; p < i_.src0.num_partitions; ++p)
      from.copy_out(static_cast<std::int64_t>(p), bytes.data() + p * row_in);
    for (std::size_t p = 0; p < i_.dst.num_partitions; ++p)
      to.copy_in(static_cast<std::int64_t>(p), bytes.data() + p * row_out);
    return;
  }
  Values values;
  values.reserve(static_cast<std::size_t>(i_.src0.elements()));
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    for (std::int64_t e = 0; e < from.elements(); ++e) values.push_back(from.get(p, e));
  }
  std::size_t n = 0;
  for (std::int64_t p = 0; p < i_.dst.num_partitions; ++p) {
    for (std::int64_t e = 0; e < to.elements(); ++e) to.set(p, e, values[n++]);
  }
}

void Exact::transfer_rows() {
  const bool gather = i_.opcode == Opcode::kDmaGather;
  const AccessPattern& rows = gather ? i_.dst : i_.src0;
  const std::int64_t per_partition = i_.src1.elements_per_partition();
  const std::int64_t width = rows.elements_per_partition() / per_partition;
  for (std::int64_t p = 0; p < rows.num_partitions; ++p) {
    for (std::int64_t r = 0; r < per_partition; ++r) {
      AccessPattern table = gather ? i_.src0 : i_.dst;
      const auto index = static_cast<std::int64_t>(get(i_.src1, p, r));
      table.offset += index * table.partition_stride;
      for (std::int64_t e = 0; e < width; ++e) {
        if (gather) {
          set(i_.dst, p, r * width + e, get(table, 0, e));
        } else {
          set(table, 0, e, round(get(table, 0, e) + get(i_.src0, p, r * width + e)));
        }
      }
    }
  }
}

Values Exact::contraction_rows() {
  Values rows;
  const bool mx = isa::is_mx(i_.src0.dtype);
  const View from = memory_.view(i_.src0);
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    for (int part = 0; part < (mx ? kMxPacked : 1); ++part) {
      for (std::int64_t n = 0; n < from.elements(); ++n) {
        const double value = from.get(p, n);
        rows.push_back(mx ? unpack(i_.src0.dtype, static_cast<std::uint32_t>(value), part) *
                                mx_scale(get(i_.src1, p / kMxScaleRows, n))
                          : value);
      }
    }
  }
  return rows;
}

void Exact::load_stationary() {
  state_.weight_columns = i_.src0.elements_per_partition();
  state_.weights = contraction_rows();
  state_.tile.clear();
  if (i_.mode != MatmulMode::kFp32Low && i_.mode != MatmulMode::kFp32High) return;
  for (double& weight : state_.weights) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(weight));
    const auto high = static_cast<double>(std::bit_cast<float>(bits & ~kLowHalf));
    weight = i_.mode == MatmulMode::kFp32High ? high : weight - high;
  }
}

void Exact::matmul() {
  const auto columns = static_cast<std::size_t>(i_.src0.elements_per_partition());
  const Values moving = contraction_rows();
  if (state_.weights.empty()) state_.weights.assign(state_.tile.begin(), state_.tile.end());
  const std::size_t k = moving.size() / columns;
  const View to = memory_.view(i_.dst);
  Values sums(columns);
  for (std::int64_t m = 0; m < i_.dst.num_partitions; ++m) {
    for (std::size_t n = 0; n < columns; ++n)
      sums[n] = i_.accumulate ? to.get(m, static_cast<std::int64_t>(n)) : 0;
    for (std::size_t p = 0; p < k; ++p) {
      const double weight = state_.weights[p * static_cast<std::size_t>(state_.weight_columns) +
                                           static_cast<std::size_t>(m)];
      const double* const row = moving.data() + p * columns;
      if (rounds_) {
        for (std::size_t n = 0; n < columns; ++n) sums[n] = round(sums[n] + round(weight * row[n]));
      } else {
        for (std::size_t n = 0; n < columns; ++n) sums[n] += weight * row[n];
      }
    }
    for (std::size_t n = 0; n < columns; ++n) to.set(m, static_cast<std::int64_t>(n), sums[n]);
  }
}

void Exact::pass_through() {
  const View to = memory_.view(i_.dst);
  const auto rows = static_cast<std::int64_t>(state_.weights.size()) / state_.weight_columns;
  for (std::int64_t m = 0; m < i_.dst.num_partitions; ++m) {
    for (std::int64_t n = 0; n < std::min(rows, to.elements()); ++n)
      to.set(m, n, state_.weights[static_cast<std::size_t>(n * state_.weight_columns + m)]);
  }
}

void Exact::quantize() {
  const DType packed = i_.dst.dtype;
  for (std::int64_t first = 0; first < i_.dst.num_partitions; first += kMxScaleRows) {
    const std::int64_t last = std::min<std::int64_t>(first + kMxScaleRows, i_.dst.num_partitions);
    for (std::int64_t n = 0; n < i_.dst.elements_per_partition(); ++n) {
      double largest = 0;
      for (std::int64_t p = first; p < last; ++p) {
        for (int part = 0; part < kMxPacked; ++part)
          largest = std::fmax(largest, std::fabs(get(i_.src0, p, n * kMxPacked + part)));
      }
      const int scale = mx_scale_for(packed, largest);
      set(i_.dst1, first / kMxScaleRows, n, scale);
      for (std::int64_t p = first; p < last; ++p) {
        std::uint32_t element = 0;
        for (int part = 0; part < kMxPacked; ++part) {
          element |=
              encode(mx_format(packed), get(i_.src0, p, n * kMxPacked + part) / mx_scale(scale))
              << (part * mx_bits(packed));
        }
        set(i_.dst, p, n, element);
      }
    }
  }
}

void Exact::eight() {
  const std::int64_t n = i_.src0.elements_per_partition();
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    Values row;
    for (std::int64_t e = 0; e < n; ++e) row.push_back(get(i_.src0, p, e));
    if (i_.opcode == Opcode::kMax8) {
      std::partial_sort(row.begin(), row.begin() + 8, row.end(), std::greater<>());
      for (std::int64_t e = 0; e < 8; ++e) set(i_.dst, p, e, row[static_cast<std::size_t>(e)]);
      continue;
    }
    // Each of the eight takes the first place with its value that none before it has taken.
    std::vector<bool> taken(row.size());
    for (std::int64_t e = 0; e < 8; ++e) {
      const double wanted = get(i_.src1, p, e);
      std::size_t at = 0;
      while (at < row.size() && (taken[at] || row[at] != wanted)) ++at;
      if (at == row.size())
        throw std::runtime_error("a value that is searched for is not in its row");
      taken[at] = true;
      if (i_.opcode == Opcode::kFindIndex8) set(i_.dst, p, e, static_cast<double>(at));
    }
    if (i_.opcode == Opcode::kFindIndex8) continue;
    for (std::int64_t e = 0; e < n; ++e)
      set(i_.dst, p, e,
          taken[static_cast<std::size_t>(e)] ? i_.imm0 : row[static_cast<std::size_t>(e)]);
  }
}

void Exact::top_k() {
  const std::int64_t k = i_.dst.elements_per_partition();
  for (std::int64_t group = 0; group < i_.dst.num_partitions; ++group) {
    Values all;
    const std::int64_t last =
        std::min<std::int64_t>((group + 1) * kPartitionGroup, i_.src0.num_partitions);
    for (std::int64_t p = group * kPartitionGroup; p < last; ++p) {
      for (std::int64_t e = 0; e < i_.src0.elements_per_partition(); ++e)
        all.push_back(get(i_.src0, p, e));
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    for (std::int64_t e = 0; e < k; ++e) set(i_.dst, group, e, all.at(static_cast<std::size_t>(e)));
  }
}

void Exact::local_gather() {
  const auto width = static_cast<std::int64_t>(i_.imm0);
  for (std::int64_t p = 0; p < i_.dst.num_partitions; ++p) {
    for (std::int64_t e = 0; e < i_.dst.elements_per_partition(); ++e) {
      const std::int64_t which = e / width;
      const auto index = static_cast<std::int64_t>(
          get(i_.src1, p / kPartitionGroup * kPartitionGroup + which % kPartitionGroup,
              which / kPartitionGroup));
      set(i_.dst, p, e, get(i_.src0, p, index * width + e % width));
    }
  }
}

void Exact::batch_stats() {
  const View from = memory_.view(i_.src0);
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    for (std::int64_t odd = 0; odd < 2; ++odd) {
      double count = 0, mean = 0, scaled = 0;
      for (std::int64_t e = odd; e < from.elements(); e += 2) count += 1, mean += from.get(p, e);
      mean = count > 0 ? mean / count : 0;
      for (std::int64_t e = odd; e < from.elements(); e += 2)
        scaled += (from.get(p, e) - mean) * (from.get(p, e) - mean);
      set(i_.dst, p, 3 * odd, count);
      set(i_.dst, p, 3 * odd + 1, mean);
      set(i_.dst, p, 3 * odd + 2, scaled);
    }
  }
}

void Exact::batch_aggregate() {
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    double count = 0, sum = 0, squares = 0;
    for (std::int64_t e = 0; e < i_.src0.elements_per_partition(); e += 3) {
      const double n = get(i_.src0, p, e), mean = get(i_.src0, p, e + 1);
      count += n, sum += n * mean, squares += get(i_.src0, p, e + 2) + n * mean * mean;
    }
    const double mean = sum / count;
    set(i_.dst, p, 0, mean);
    set(i_.dst, p, 1, squares / count - mean * mean);
  }
}

void Exact::reduce() {
  const View from = memory_.view(i_.src0), to = memory_.view(i_.dst);
  const std::int64_t results = to.elements(), n = from.elements() / results;
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    for (std::int64_t r = 0; r < results; ++r) {
      double result = i_.accumulate ? to.get(p, r) : from.get(p, r * n);
      for (std::int64_t e = i_.accumulate ? 0 : 1; e < n; ++e)
        result = stage(i_.alu, result, from.get(p, r * n + e));
      to.set(p, r, result);
    }
  }
}

void Exact::scan() {
  const View from = memory_.view(i_.src0), other = memory_.view(i_.src1), to = memory_.view(i_.dst);
  for (std::int64_t p = 0; p < i_.dst.num_partitions; ++p) {
    double before = imm0_;
    for (std::int64_t e = 0; e < to.elements(); ++e) {
      to.set(p, e, stage(i_.alu2, stage(i_.alu, from.get(p, e), before), other.get(p, e)));
      before = to.get(p, e);
    }
  }
}

std::int32_t draw(EngineState& state) {
  std::uint64_t x = (++state.draws) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::int32_t>(x >> 32);
}

double Exact::element(std::int64_t p, std::int64_t e, double a, const View* other) const {
  switch (i_.opcode) {
    case Opcode::kTensorCopy: return a;
    case Opcode::kTensorTensor: return stage(i_.alu, a, other->get(p, e));
    case Opcode::kTensorScalar: {
      const double first = stage(i_.alu, a, other != nullptr ? other->get(p, 0) : imm0_);
      if (i_.alu2 == isa::AluOp::kNone) return first;
      return stage(i_.alu2, first,
                   other != nullptr && other->elements() == 2 ? other->get(p, 1) : imm1_);
    }
    case Opcode::kScalarTensorTensor:
      return stage(i_.alu2, stage(i_.alu, a, imm0_), other->get(p, e));
    case Opcode::kActivation:
      return round(apply(i_.activation,
                         round(round(imm0_ * a) + (other != nullptr ? other->get(p, 0) : imm1_))));
    case Opcode::kExponential: return round(std::exp(round(a - other->get(p, 0))));
    case Opcode::kSelect: return other->get(p, e) != 0 ? a : imm0_;
    case Opcode::kAffineSelect:
      return apply(i_.alu, i_.imm0 + static_cast<double>(p - e), 0) != 0 ? a : imm1_;
    case Opcode::kMemset: return imm0_;
    case Opcode::kRandom: return draw(state_);
    case Opcode::kIota:
      return i_.imm0 + i_.imm1 * static_cast<double>(p * i_.dst.elements_per_partition() + e);
    default: throw std::runtime_error("no numbers are defined for " + std::string(name(i_.opcode)));
  }
}

void Exact::elementwise() {
  const View to = memory_.view(i_.dst);
  const auto present = [this](const AccessPattern& a) {
    return a.present() ? std::optional(memory_.view(a)) : std::nullopt;
  };
  const std::optional<View> from = present(i_.src0), other = present(i_.src1);
  for (std::int64_t p = 0; p < i_.dst.num_partitions; ++p) {
    double sum = i_.dst1.present() && i_.accumulate ? get(i_.dst1, p, 0) : 0;
    for (std::int64_t e = 0; e < to.elements(); ++e) {
      const double result = element(p, e, from ? from->get(p, e) : 0, other ? &*other : nullptr);
      to.set(p, e, result);
      sum = round(sum + result);
    }
    if (i_.dst1.present()) set(i_.dst1, p, 0, sum);
  }
}

void Exact::transpose() {
  const View from = memory_.view(i_.src0), to = memory_.view(i_.dst);
  for (std::int64_t p = 0; p < i_.src0.num_partitions; ++p) {
    for (std::int64_t e = 0; e < from.elements(); ++e) to.set(e, p, from.get(p, e));
  }
}

void Exact::run() {
  switch (i_.opcode) {
    case Opcode::kDma: return transfer();
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd: return transfer_rows();
    case Opcode::kLoadStationary: return load_stationary();
    case Opcode::kMatmul: return i_.mode == MatmulMode::kTranspose ? pass_through() : matmul();
    case Opcode::kDmaTranspose:
    case Opcode::kTranspose: return transpose();
    case Opcode::kTensorReduce: return reduce();
    case Opcode::kTensorTensorScan: return scan();
    case Opcode::kQuantizeMx: return quantize();
    case Opcode::kMax8:
    case Opcode::kFindIndex8:
    case Opcode::kMatchReplace8: return eight();
    case Opcode::kTopK: return top_k();
    case Opcode::kLocalGather: return local_gather();
    case Opcode::kBatchStats: return batch_stats();
    case Opcode::kBatchAggregate: return batch_aggregate();
    case Opcode::kTensorCopyDynamic: {
      Instruction plain = i_;
      plain.opcode = Opcode::kTensorCopy;
      plain.src0.offset += static_cast<std::int64_t>(get(i_.src1, 0, 0));
      plain.src1 = {};
      return execute_exact(plain, state_, memory_,
                           rounds_ ? Arithmetic::kFp32 : Arithmetic::kDouble);
    }
    case Opcode::kGeneric:
    case Opcode::kLoadTable: return;  // costed only
    default: return elementwise();
  }
}

}  // namespace

bool is_dma(Opcode opcode) {
  return opcode == Opcode::kDma || opcode == Opcode::kDmaGather ||
         opcode == Opcode::kDmaScatterAdd || opcode == Opcode::kDmaTranspose;
}

bool is_whole(const Instruction& instruction) {
  for (const AccessPattern* a :
       {&instruction.dst, &instruction.src0, &instruction.src1, &instruction.dst1}) {
    if (a->present() && !holds_whole(a->dtype)) return false;
  }
  return true;
}

void execute_exact(const Instruction& instruction, EngineState& state, Memory& memory,
                   Arithmetic arithmetic) {
  if (instruction.mode == MatmulMode::kDoubleRow || instruction.mode == MatmulMode::kSparse)
    throw std::runtime_error("no numbers are defined for a product in the mode " +
                             std::string(name(instruction.mode)));
  Exact(instruction, state, memory, arithmetic).run();
}

}  // namespace trellis::sim::functional
