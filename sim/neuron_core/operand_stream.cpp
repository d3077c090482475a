#include "sim/neuron_core/operand_stream.h"

#include <algorithm>
#include <cstdlib>

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::Opcode;

bool is_sixteen_bit_float(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kFp16; }

double mode_of(DType dtype, const EngineConfig& engine) {
  if (is_sixteen_bit_float(dtype)) return engine.bf16_speedup;
  if (dtype == DType::kFp32) return engine.fp32_speedup;
  return isa::is_fp8(dtype) ? engine.fp8_speedup : 1;
}

class Looker {
 public:
  Looker(const isa::Program& program, const EngineConfig& engine, std::int64_t fast_stride)
      : program_(program), engine_(engine), fast_stride_(fast_stride) {}

  void look_at(const AccessPattern& a, bool source) {
    if (!a.present()) return;
    const bool first = seen_++ == 0;
    stream_.n = std::max(stream_.n, static_cast<double>(a.elements_per_partition()));
    stream_.widest_mode = first ? mode_of(a.dtype, engine_)
                                : std::min(stream_.widest_mode, mode_of(a.dtype, engine_));
    stream_.four_byte = stream_.four_byte || a.dtype == DType::kFp32;
    stream_.sixteen_bit = stream_.sixteen_bit && is_sixteen_bit_float(a.dtype);
    const bool psum = program_.buffers[a.buffer].space == isa::MemorySpace::kPsum;
    stream_.psum_operands += psum ? 1 : 0;
    stream_.psum_sources += psum && source ? 1 : 0;
    stream_.sources += source ? 1 : 0;
    if (a.num_dims == 0) return;
    const isa::Dim& inner = a.dims[a.num_dims - 1];
    if (inner.count <= 1) return;
    stream_.contiguous = stream_.contiguous && inner.stride == 1;
    stream_.wide_stride =
        stream_.wide_stride || std::abs(inner.stride) * isa::size_bytes(a.dtype) > fast_stride_;
  }

  [[nodiscard]] OperandStream result() const { return stream_; }

 private:
  const isa::Program& program_;
  const EngineConfig& engine_;
  std::int64_t fast_stride_;
  int seen_ = 0;
  OperandStream stream_;
};

/// src1 is a column or an index next to the data.
bool streams_src1(Opcode opcode) {
  switch (opcode) {
    case Opcode::kTensorTensor:
    case Opcode::kScalarTensorTensor:
    case Opcode::kTensorTensorScan:
    case Opcode::kSelect: return true;
    default: return false;
  }
}

}  // namespace

OperandStream operand_stream(const Instruction& i, Engine engine, const isa::Program& program,
                             const CoreConfig& core) {
  const EngineConfig& config = engine == Engine::kVector   ? core.vector
                               : engine == Engine::kScalar ? core.scalar
                                                           : core.gpsimd;
  Looker looker(program, config, core.costs.fast_stride.value);
  looker.look_at(i.dst, false);
  looker.look_at(i.src0, true);
  if (streams_src1(i.opcode)) looker.look_at(i.src1, true);
  return looker.result();
}

double perf_mode(const Instruction& i, Engine engine, const OperandStream& s) {
  const double half = std::max(1.0, s.widest_mode / 2);
  // fp32 runs in its mode where a result is made of one stream in SBUF.
  if (s.four_byte && s.psum_operands > 0) return 1;
  const bool one_source = i.opcode == Opcode::kTensorCopy || i.opcode == Opcode::kTensorScalar;
  if (engine == Engine::kScalar) return one_source ? s.widest_mode : 1;
  if (engine != Engine::kVector) return 1;
  if (i.opcode == Opcode::kTensorTensor) return s.psum_sources == 0 ? half : 1;
  if (!one_source) return 1;
  if (s.psum_operands == 0) return s.contiguous ? s.widest_mode : half;
  return s.psum_operands == 1 && s.contiguous ? half : 1;
}

double perf_mode(const Instruction& i, Engine engine, const isa::Program& program,
                 const CoreConfig& core) {
  return perf_mode(i, engine, operand_stream(i, engine, program, core));
}

}  // namespace trellis::sim
