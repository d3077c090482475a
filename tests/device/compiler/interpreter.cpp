#include "tests/device/compiler/interpreter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/device/compiler/numbers.h"
#include "tests/device/compiler/products.h"

namespace trellis::device::testing {

namespace isa = sim::isa;
using isa::AccessPattern;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

namespace {
constexpr int kMxPacked = 4, kMxScaleRows = 8;  // a scale belongs to 4 values of 8 partitions

bool is_dma(Opcode opcode) {
  return opcode == Opcode::kDma || opcode == Opcode::kDmaGather || opcode == Opcode::kDmaScatterAdd;
}
}  // namespace

Interpreter::Interpreter(const isa::Program& program, const isa::Limits& limits, std::uint32_t seed)
    : program_(program),
      random_(seed * 2654435761u + 88172645463325252ull),
      shuffled_(seed != 0),
      sbuf_row_(limits.sbuf_bytes_per_partition),
      psum_row_(limits.psum_bytes_per_partition),
      semaphores_(static_cast<std::size_t>(limits.semaphores)),
      rings_(isa::kNumEngines * isa::kNumDmaQueues) {
  // All ones reads as NaN: a use before the first write shows.
  sbuf_.assign(static_cast<std::size_t>(limits.partitions * sbuf_row_), 0xff);
  psum_.assign(static_cast<std::size_t>(limits.partitions * psum_row_), 0xff);
  for (const auto& buffer : program.buffers)
    hbm_.emplace_back(
        buffer.space == MemorySpace::kHbm ? static_cast<std::size_t>(buffer.bytes) : 0, 0xff);
}

void Interpreter::write(std::uint32_t buffer, DType dtype, const Values& values) {
  const auto size = static_cast<std::size_t>(isa::size_bytes(dtype));
  if (hbm_.at(buffer).size() < values.size() * size)
    throw std::runtime_error("buffer is smaller than the values for it");
  for (std::size_t i = 0; i < values.size(); ++i)
    encode(dtype, values[i], hbm_[buffer].data() + i * size);
}

Values Interpreter::read(std::uint32_t buffer, DType dtype, std::int64_t count) const {
  Values out;
  const auto size = isa::size_bytes(dtype);
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(decode(dtype, hbm_.at(buffer).data() + i * size));
  return out;
}

void Interpreter::run() {
  for (const auto& segment : program_.segments) run_segment(segment);
}

bool Interpreter::finished(const isa::Segment& segment) const {
  if (pending_ > 0) return false;
  for (int e = 0; e < isa::kNumEngines; ++e) {
    if (engines_[e].pc < segment.queues[e].size()) return false;
  }
  return true;
}

void Interpreter::run_segment(const isa::Segment& segment) {
  engines_.assign(isa::kNumEngines, {});
  for (int e = 0; e < isa::kNumEngines; ++e)
    engines_[e].executed.assign(segment.queues[e].size(), 0);
  const int actors = isa::kNumEngines + static_cast<int>(rings_.size());
  const auto step = [&](int actor) {
    return actor < isa::kNumEngines ? step_engine(segment, actor)
                                    : step_ring(actor - isa::kNumEngines);
  };
  int turn = 0;
  while (!finished(segment)) {
    int start = turn++ % actors;
    if (shuffled_) {
      random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
      // Engines run far ahead of the transfers, most of the time.
      start = random_ % 16 == 0
                  ? static_cast<int>(random_ / 16 % static_cast<std::uint64_t>(actors))
                  : static_cast<int>(random_ / 16 % isa::kNumEngines);
    }
    bool moved = false;
    for (int i = 0; i < actors && !moved; ++i) moved = step((start + i) % actors);
    if (!moved) {
      std::string where;
      for (int e = 0; e < isa::kNumEngines; ++e) {
        where += std::string(name(static_cast<isa::Engine>(e))) + " at " +
                 std::to_string(engines_[e].pc) + "/" + std::to_string(segment.queues[e].size()) +
                 "; ";
      }
      throw std::runtime_error("deadlock: " + where);
    }
  }
  for (std::size_t s = 0; s < semaphores_.size(); ++s) {
    if (semaphores_[s] != 0)
      throw std::runtime_error("semaphore " + std::to_string(s) + " is left at " +
                               std::to_string(semaphores_[s]));
  }
}

bool Interpreter::ready(const Instruction& instruction) const {
  for (const auto& wait : instruction.waits) {
    if (semaphores_[wait.id] < wait.value) return false;
  }
  return true;
}
void Interpreter::take(const Instruction& instruction) {
  for (const auto& wait : instruction.waits) semaphores_[wait.id] -= wait.value;
}
void Interpreter::post(const Instruction& instruction) {
  for (const auto& update : instruction.updates) semaphores_[update.id] += update.value;
}

Instruction Interpreter::resolve(const Instruction& instruction, const EngineState& state,
                                 std::int64_t executed) const {
  Instruction out = instruction;
  for (AccessPattern* a : {&out.dst, &out.src0, &out.src1, &out.dst1}) {
    for (std::size_t d = 0; d < state.loops.size(); ++d)
      a->offset += a->loop_stride[d] * state.loops[d].iteration;
    a->offset += a->rotate_stride * (executed % a->rotate_count);
  }
  if (out.overwrite_first && !state.loops.empty() && state.loops.back().iteration == 0)
    out.accumulate = false;
  return out;
}

bool Interpreter::step_engine(const isa::Segment& segment, int engine) {
  EngineState& state = engines_[engine];
  const auto& queue = segment.queues[engine];
  if (state.pc >= queue.size()) return false;
  const Instruction& instruction = queue[state.pc];
  if (!ready(instruction)) return false;
  take(instruction);
  if (instruction.opcode == Opcode::kLoop) {
    state.loops.push_back({state.pc, 0, instruction.count});
  } else if (instruction.opcode == Opcode::kEndLoop) {
    if (++state.loops.back().iteration < state.loops.back().count) {
      state.pc = state.loops.back().begin;
    } else {
      state.loops.pop_back();
    }
  } else if (instruction.opcode == Opcode::kSemaphore) {
    post(instruction);
  } else {
    const Instruction plain = resolve(instruction, state, state.executed[state.pc]++);
    if (is_dma(plain.opcode)) {
      rings_[static_cast<std::size_t>(engine * isa::kNumDmaQueues +
                                      static_cast<int>(plain.dma_queue))]
          .pending.push_back({plain});
      ++pending_;
    } else {
      execute(plain, state);
      post(plain);
    }
  }
  ++state.pc;
  return true;
}

bool Interpreter::step_ring(int index) {
  Ring& ring = rings_[static_cast<std::size_t>(index)];
  if (ring.head == ring.pending.size()) return false;
  const Instruction instruction = ring.pending[ring.head++].instruction;
  if (ring.head == ring.pending.size()) ring = {};
  --pending_;
  execute_dma(instruction);
  post(instruction);
  return true;
}

std::uint8_t* Interpreter::address(const AccessPattern& a, std::int64_t partition,
                                   std::int64_t element) const {
  std::int64_t at = a.offset;
  for (int d = a.num_dims - 1; d >= 0; --d) {
    at += a.dims[d].stride * (element % a.dims[d].count);
    element /= a.dims[d].count;
  }
  const auto& buffer = program_.buffers.at(a.buffer);
  const std::int64_t size = isa::size_bytes(a.dtype);
  if (buffer.space == MemorySpace::kHbm) {
    at += partition * a.partition_stride;
    if (at < 0 || (at + 1) * size > buffer.bytes)
      throw std::runtime_error("access outside of buffer " + buffer.name);
    return const_cast<std::uint8_t*>(hbm_[a.buffer].data()) + at * size;
  }
  const bool sbuf = buffer.space == MemorySpace::kSbuf;
  const std::int64_t byte =
      (a.start_partition + partition) * (sbuf ? sbuf_row_ : psum_row_) + buffer.address + at * size;
  return (sbuf ? sbuf_ : psum_).data() + byte;
}

class Interpreter::View {
 public:
  View(DType dtype, std::uint8_t* first, std::int64_t row_bytes, std::vector<std::int64_t> bytes)
      : dtype_(dtype), first_(first), row_(row_bytes), bytes_(std::move(bytes)) {}
  [[nodiscard]] double get(std::int64_t partition, std::int64_t element) const {
    return decode(dtype_, place(partition, element));
  }
  void set(std::int64_t partition, std::int64_t element, double value) const {
    encode(dtype_, value, place(partition, element));
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  /// All elements of a partition.
  void read(std::int64_t partition, double* out) const {
    switch (dtype_) {
      case DType::kFp32: return read_as<DType::kFp32>(partition, out);
      case DType::kBf16: return read_as<DType::kBf16>(partition, out);
      default:
        for (std::size_t e = 0; e < bytes_.size(); ++e)
          out[e] = get(partition, static_cast<std::int64_t>(e));
    }
  }
  void write(std::int64_t partition, const double* values) const {
    switch (dtype_) {
      case DType::kFp32: return write_as<DType::kFp32>(partition, values);
      case DType::kBf16: return write_as<DType::kBf16>(partition, values);
      default:
        for (std::size_t e = 0; e < bytes_.size(); ++e)
          set(partition, static_cast<std::int64_t>(e), values[e]);
    }
  }

 private:
  // The compiler knows the type: the loop does not ask for it at each element.
  template <DType kType>
  void read_as(std::int64_t partition, double* out) const {
    const std::uint8_t* const row = first_ + partition * row_;
    for (std::size_t e = 0; e < bytes_.size(); ++e) out[e] = decode(kType, row + bytes_[e]);
  }
  template <DType kType>
  void write_as(std::int64_t partition, const double* values) const {
    std::uint8_t* const row = first_ + partition * row_;
    for (std::size_t e = 0; e < bytes_.size(); ++e) encode(kType, values[e], row + bytes_[e]);
  }
  [[nodiscard]] std::uint8_t* place(std::int64_t partition, std::int64_t element) const {
    return first_ + partition * row_ + bytes_[static_cast<std::size_t>(element)];
  }
  DType dtype_;
  std::uint8_t* first_;  ///< of partition 0
  std::int64_t row_;
  std::vector<std::int64_t> bytes_;  ///< from there, by element
};

Interpreter::View Interpreter::view(const AccessPattern& a) const {
  const std::int64_t size = isa::size_bytes(a.dtype);
  std::vector<std::int64_t> bytes{0};
  for (int d = a.num_dims - 1; d >= 0; --d) {
    // The bytes so far are one run of the dimension around it; runs follow in the order of
    // elements.
    std::vector<std::int64_t> all;
    all.reserve(bytes.size() * static_cast<std::size_t>(a.dims[d].count));
    for (std::int64_t i = 0; i < a.dims[d].count; ++i) {
      for (const std::int64_t at : bytes) all.push_back(at + i * a.dims[d].stride * size);
    }
    bytes = std::move(all);
  }
  const MemorySpace space = program_.buffers.at(a.buffer).space;
  const std::int64_t row = space == MemorySpace::kHbm    ? a.partition_stride * size
                           : space == MemorySpace::kSbuf ? sbuf_row_
                                                         : psum_row_;
  // Those of the first and the last partition are furthest.
  if (space == MemorySpace::kHbm) {
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    for (const auto extreme : {least, most}) {
      for (const std::int64_t p : {std::int64_t{0}, std::int64_t{a.num_partitions} - 1})
        (void)address(a, p, extreme - bytes.begin());
    }
  }
  return {a.dtype, address(a, 0, 0), row, std::move(bytes)};
}

double Interpreter::get(const AccessPattern& a, std::int64_t partition,
                        std::int64_t element) const {
  return decode(a.dtype, address(a, partition, element));
}
void Interpreter::set(const AccessPattern& a, std::int64_t partition, std::int64_t element,
                      double value) {
  encode(a.dtype, value, address(a, partition, element));
}

void Interpreter::execute_dma(const Instruction& i) {
  if (i.opcode == Opcode::kDma) {
    // Rows may be cut differently on both sides: only the linear order counts. All is read before
    // anything is written.
    const View from = view(i.src0), to = view(i.dst);
    Values values(from.size() * static_cast<std::size_t>(i.src0.num_partitions));
    for (std::int64_t p = 0; p < i.src0.num_partitions; ++p)
      from.read(p, values.data() + static_cast<std::size_t>(p) * from.size());
    if (values.size() < to.size() * static_cast<std::size_t>(i.dst.num_partitions))
      throw std::runtime_error("a transfer writes more than it reads");
    for (std::int64_t p = 0; p < i.dst.num_partitions; ++p)
      to.write(p, values.data() + static_cast<std::size_t>(p) * to.size());
    return;
  }
  const bool gather = i.opcode == Opcode::kDmaGather;
  const AccessPattern& rows = gather ? i.dst : i.src0;
  const std::int64_t per_partition = i.src1.elements_per_partition();
  const std::int64_t width = rows.elements_per_partition() / per_partition;
  for (std::int64_t p = 0; p < rows.num_partitions; ++p) {
    for (std::int64_t r = 0; r < per_partition; ++r) {
      AccessPattern table = gather ? i.src0 : i.dst;
      const auto index = static_cast<std::int64_t>(get(i.src1, p, r));
      table.offset += index * table.partition_stride;
      for (std::int64_t e = 0; e < width; ++e) {
        if (gather) {
          set(i.dst, p, r * width + e, get(table, 0, e));
        } else {
          set(table, 0, e, get(table, 0, e) + get(i.src0, p, r * width + e));
        }
      }
    }
  }
}

Values Interpreter::contraction_rows(const Instruction& i) const {
  const View from = view(i.src0);
  Values rows;
  if (!isa::is_mx(i.src0.dtype)) {
    rows.resize(from.size() * static_cast<std::size_t>(i.src0.num_partitions));
    for (std::int64_t p = 0; p < i.src0.num_partitions; ++p)
      from.read(p, rows.data() + static_cast<std::size_t>(p) * from.size());
    return rows;
  }
  const Values numbers = mx_numbers(i.src0.dtype);
  const std::uint32_t last = static_cast<std::uint32_t>(numbers.size()) - 1;
  const int bits = mx_bits(i.src0.dtype);
  Values packed(from.size()), scales(from.size());
  for (std::int64_t p = 0; p < i.src0.num_partitions; ++p) {
    from.read(p, packed.data());
    for (std::size_t n = 0; p % kMxScaleRows == 0 && n < scales.size(); ++n)
      scales[n] = mx_scale(get(i.src1, p / kMxScaleRows, static_cast<std::int64_t>(n)));
    for (int part = 0; part < kMxPacked; ++part) {
      for (std::size_t n = 0; n < packed.size(); ++n)
        rows.push_back(numbers[static_cast<std::uint32_t>(packed[n]) >> (part * bits) & last] *
                       scales[n]);
    }
  }
  return rows;
}

void Interpreter::load_stationary(const Instruction& i, EngineState& state) const {
  state.weight_columns = i.src0.elements_per_partition();
  state.weights = contraction_rows(i);
  if (i.mode != isa::MatmulMode::kFp32Low && i.mode != isa::MatmulMode::kFp32High) return;
  for (double& weight : state.weights) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(weight));
    const double high = std::bit_cast<float>(bits & ~0x7ffu);  // 12 bits of the mantissa
    weight = i.mode == isa::MatmulMode::kFp32High ? high : weight - high;
  }
}

void Interpreter::execute_matmul(const Instruction& i, const EngineState& state) {
  const std::int64_t columns = i.src0.elements_per_partition();
  const Values moving = contraction_rows(i);
  const std::int64_t k = static_cast<std::int64_t>(moving.size()) / columns;
  const View to = view(i.dst);
  Values sums(static_cast<std::size_t>(columns));
  for (std::int64_t m = 0; m < i.dst.num_partitions; ++m) {
    if (i.accumulate) {
      to.read(m, sums.data());
    } else {
      std::fill(sums.begin(), sums.end(), 0.0);
    }
    add_rows(sums, {state.weights.data() + m, state.weight_columns}, moving.data(), k);
    to.write(m, sums.data());
  }
}

void Interpreter::execute_quantize(const Instruction& i) {
  const DType packed = i.dst.dtype;
  for (std::int64_t first = 0; first < i.dst.num_partitions; first += kMxScaleRows) {
    const std::int64_t last = std::min<std::int64_t>(first + kMxScaleRows, i.dst.num_partitions);
    for (std::int64_t n = 0; n < i.dst.elements_per_partition(); ++n) {
      double largest = 0;
      for (std::int64_t p = first; p < last; ++p) {
        for (int part = 0; part < kMxPacked; ++part)
          largest = std::fmax(largest, std::fabs(get(i.src0, p, n * kMxPacked + part)));
      }
      const int scale = mx_scale_for(packed, largest);
      set(i.dst1, first / kMxScaleRows, n, scale);
      for (std::int64_t p = first; p < last; ++p) {
        std::uint32_t element = 0;
        for (int part = 0; part < kMxPacked; ++part) {
          element |=
              encode(mx_format(packed), get(i.src0, p, n * kMxPacked + part) / mx_scale(scale))
              << (part * mx_bits(packed));
        }
        set(i.dst, p, n, element);
      }
    }
  }
}

void Interpreter::execute_eight(const Instruction& i) {
  const std::int64_t n = i.src0.elements_per_partition();
  for (std::int64_t p = 0; p < i.src0.num_partitions; ++p) {
    Values row;
    for (std::int64_t e = 0; e < n; ++e) row.push_back(get(i.src0, p, e));
    if (i.opcode == Opcode::kMax8) {
      std::partial_sort(row.begin(), row.begin() + 8, row.end(), std::greater<>());
      for (std::int64_t e = 0; e < 8; ++e) set(i.dst, p, e, row[static_cast<std::size_t>(e)]);
      continue;
    }
    // Each of the eight takes the first place with its value that none before it has taken.
    std::vector<bool> taken(row.size());
    for (std::int64_t e = 0; e < 8; ++e) {
      const double wanted = get(i.src1, p, e);
      std::size_t at = 0;
      while (at < row.size() && (taken[at] || row[at] != wanted)) ++at;
      if (at == row.size())
        throw std::runtime_error("a value that is searched for is not in its row");
      taken[at] = true;
      if (i.opcode == Opcode::kFindIndex8) set(i.dst, p, e, static_cast<double>(at));
    }
    if (i.opcode == Opcode::kFindIndex8) continue;
    for (std::int64_t e = 0; e < n; ++e)
      set(i.dst, p, e,
          taken[static_cast<std::size_t>(e)] ? i.imm0 : row[static_cast<std::size_t>(e)]);
  }
}

void Interpreter::execute_reduce(const Instruction& i) {
  const View from = view(i.src0), to = view(i.dst);
  Values row(from.size());
  for (std::int64_t p = 0; p < i.src0.num_partitions; ++p) {
    const std::int64_t results = i.dst.elements_per_partition(),
                       n = i.src0.elements_per_partition() / results;
    from.read(p, row.data());
    for (std::int64_t r = 0; r < results; ++r) {
      const double* const values = row.data() + r * n;
      double result = i.accumulate ? to.get(p, r) : values[0];
      for (std::int64_t e = i.accumulate ? 0 : 1; e < n; ++e)
        result = apply(i.alu, result, values[e]);
      to.set(p, r, result);
    }
  }
}

void Interpreter::execute_scan(const Instruction& i) {
  const View from = view(i.src0), other = view(i.src1), to = view(i.dst);
  for (std::int64_t p = 0; p < i.dst.num_partitions; ++p) {
    double before = i.imm0;
    for (std::int64_t e = 0; e < i.dst.elements_per_partition(); ++e) {
      to.set(p, e, apply(i.alu2, apply(i.alu, from.get(p, e), before), other.get(p, e)));
      before = to.get(p, e);
    }
  }
}

std::int32_t Interpreter::EngineState::draw() {
  std::uint64_t x = (++draws) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::int32_t>(x >> 32);
}

void Interpreter::execute_elementwise(const Instruction& i, EngineState& state) {
  const View to = view(i.dst);
  const std::optional<View> from = i.src0.present() ? std::optional(view(i.src0)) : std::nullopt,
                            other = i.src1.present() ? std::optional(view(i.src1)) : std::nullopt;
  Values row(std::max(to.size(), from ? from->size() : 0)), operands(other ? other->size() : 0);
  const std::span<double> results(row.data(), to.size());
  for (std::int64_t p = 0; p < i.dst.num_partitions; ++p) {
    if (from) from->read(p, row.data());
    if (other) other->read(p, operands.data());
    elementwise_row(i, state, p, operands, results);
    to.write(p, results.data());
    if (!i.dst1.present()) continue;
    double sum = i.accumulate ? get(i.dst1, p, 0) : 0;
    for (const double value : results) sum += value;
    set(i.dst1, p, 0, sum);
  }
}

void Interpreter::elementwise_row(const Instruction& i, EngineState& state, std::int64_t partition,
                                  const Values& operands, std::span<double> row) {
  const auto each = [row](auto function) {
    for (std::size_t e = 0; e < row.size(); ++e) row[e] = function(e, row[e]);
  };
  const auto scalar = [&operands](double otherwise) {
    return operands.empty() ? otherwise : operands.front();
  };
  switch (i.opcode) {
    case Opcode::kTensorTensor:
      return each([&](std::size_t e, double a) { return apply(i.alu, a, operands[e]); });
    case Opcode::kTensorScalar: {
      const double first = scalar(i.imm0), second = operands.size() == 2 ? operands.back() : i.imm1;
      each([&](std::size_t, double a) { return apply(i.alu, a, first); });
      if (i.alu2 == isa::AluOp::kNone) return;
      return each([&](std::size_t, double a) { return apply(i.alu2, a, second); });
    }
    case Opcode::kScalarTensorTensor:
      return each([&](std::size_t e, double a) {
        return apply(i.alu2, apply(i.alu, a, i.imm0), operands[e]);
      });
    case Opcode::kActivation:
      return each([&, bias = scalar(i.imm1)](std::size_t, double a) {
        return apply(i.activation, i.imm0 * a + bias);
      });
    case Opcode::kSelect:
      return each([&](std::size_t e, double a) { return operands[e] != 0 ? a : i.imm0; });
    case Opcode::kMemset: return each([&](std::size_t, double) { return i.imm0; });
    case Opcode::kRandom: return each([&](std::size_t, double) { return state.draw(); });
    case Opcode::kIota:
      return each([&](std::size_t e, double) {
        const auto index = static_cast<std::size_t>(partition) * row.size() + e;
        return i.imm0 + i.imm1 * static_cast<double>(index);
      });
    default: return;
  }
}

void Interpreter::transpose(const Instruction& i) {
  const View from = view(i.src0), to = view(i.dst);
  const std::int64_t columns = i.src0.elements_per_partition();
  Values row(from.size());
  for (std::int64_t p = 0; p < i.src0.num_partitions; ++p) {
    from.read(p, row.data());
    for (std::int64_t e = 0; e < columns; ++e) to.set(e, p, row[static_cast<std::size_t>(e)]);
  }
}

void Interpreter::execute(const Instruction& i, EngineState& state) {
  switch (i.opcode) {
    case Opcode::kLoadStationary: load_stationary(i, state); break;
    case Opcode::kMatmul: execute_matmul(i, state); break;
    case Opcode::kTranspose: transpose(i); break;
    case Opcode::kTensorReduce: execute_reduce(i); break;
    case Opcode::kTensorTensorScan: execute_scan(i); break;
    case Opcode::kQuantizeMx: execute_quantize(i); break;
    case Opcode::kMax8:
    case Opcode::kFindIndex8:
    case Opcode::kMatchReplace8: execute_eight(i); break;
    case Opcode::kGeneric:
    case Opcode::kLoadTable: break;
    default: execute_elementwise(i, state);
  }
}

}  // namespace trellis::device::testing
