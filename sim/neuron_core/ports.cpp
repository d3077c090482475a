#include "sim/neuron_core/ports.h"

#include <algorithm>

#include "sim/isa/extent.h"
#include "sim/neuron_core/operand_stream.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::Engine;
using isa::MemorySpace;

bool moves(const AccessPattern& a) {
  return (a.rotate_count > 1 && a.rotate_stride != 0) ||
         std::any_of(a.loop_stride.begin(), a.loop_stride.end(),
                     [](std::int64_t s) { return s != 0; });
}

PortSet banks_of(const AccessPattern& a, const isa::Buffer& buffer, const isa::Limits& limits) {
  if (moves(a)) return 0;
  const isa::Extent tile = isa::tile_extent(a, MemorySpace::kPsum);
  const std::int64_t size = isa::size_bytes(a.dtype);
  PortSet banks = 0;
  const std::int64_t last = (buffer.address + (tile.last + 1) * size - 1) / limits.psum_bank_bytes;
  for (std::int64_t bank = (buffer.address + tile.first * size) / limits.psum_bank_bytes;
       bank <= last; ++bank)
    banks |= 1u << (bank % kMaxPsumBanks);
  return banks;
}

}  // namespace

PortSet shared_ports(const isa::Instruction& i, Engine engine, const isa::Program& program,
                     const CoreConfig& core) {
  const bool vector = engine == Engine::kVector;
  if (!vector && engine != Engine::kScalar && engine != Engine::kGpSimd) return 0;
  bool sbuf = false;
  PortSet ports = 0;
  for (const AccessPattern* a : {&i.dst, &i.src0, &i.src1, &i.dst1}) {
    if (!a->present()) continue;
    const isa::Buffer& buffer = program.buffers[a->buffer];
    sbuf = sbuf || buffer.space == MemorySpace::kSbuf;
    if (buffer.space == MemorySpace::kPsum)
      ports |= core.costs.vector_scalar_share_psum ? kPsumVectorScalar
                                                   : banks_of(*a, buffer, core.limits);
  }
  if (engine == Engine::kScalar || !sbuf) return ports;
  const bool needs_sbuf =
      !vector || core.costs.vector_gpsimd_share_sbuf || perf_mode(i, engine, program, core) > 1;
  return needs_sbuf ? ports | kSbufVectorGpSimd : ports;
}

}  // namespace trellis::sim
