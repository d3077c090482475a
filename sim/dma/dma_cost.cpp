#include "sim/dma/dma_cost.h"

#include <algorithm>


namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

MemorySpace space_of(const AccessPattern& a, const isa::Program& program) { return program.buffers[a.buffer].space; }

/// Elements of the longest run that one descriptor can cover. In HBM, rows that follow each other without a gap are one run.
std::int64_t run_elements(const AccessPattern& a, MemorySpace space) {
  const std::int64_t run = a.contiguous_bytes() / isa::size_bytes(a.dtype);
  const bool joined = space == MemorySpace::kHbm && run == a.elements_per_partition() && a.partition_stride == run;
  return joined ? run * a.num_partitions : run;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// `elements` in runs of `run` elements; runs longer than a descriptor are cut.
DmaTransfer in_descriptors(std::int64_t elements, std::int64_t run, std::int64_t element_bytes, const DmaConfig& dma, const isa::Limits& limits) {
  const std::int64_t cut = std::max<std::int64_t>(1, limits.max_descriptor_bytes / element_bytes);
  const std::int64_t per_run = ceil_div(run, cut);
  const std::int64_t per_descriptor = ceil_div(run, per_run);
  DmaTransfer t;
  t.descriptors = ceil_div(elements, run) * per_run;
  t.bytes = Bytes(elements * element_bytes);
  t.descriptor_time = std::max(dma.descriptor_floor, transfer_time(Bytes(per_descriptor * element_bytes), dma.engine_rate));
  return t;
}

void add_hbm(DmaTransfer& t, const AccessPattern& a, bool read, const isa::Program& program) {
  if (space_of(a, program) != MemorySpace::kHbm) return;
  (read ? t.hbm_read : t.hbm_written) += Bytes(a.bytes());
}

/// A cast moves the wider of the two formats through the engine.
std::int64_t wider_bytes(const AccessPattern& a, const AccessPattern& b) { return std::max(isa::size_bytes(a.dtype), isa::size_bytes(b.dtype)); }

DmaTransfer copy(const Instruction& i, const isa::Program& program, const DmaConfig& dma, const isa::Limits& limits) {
  const std::int64_t run = std::min(run_elements(i.dst, space_of(i.dst, program)), run_elements(i.src0, space_of(i.src0, program)));
  DmaTransfer t = in_descriptors(i.dst.elements(), run, wider_bytes(i.dst, i.src0), dma, limits);
  add_hbm(t, i.src0, true, program);
  add_hbm(t, i.dst, false, program);
  return t;
}

/// `rows`: the side whose rows the indices name one by one, as many elements as are moved. The other operand is the whole table.
DmaTransfer indexed(const Instruction& i, const AccessPattern& rows, const AccessPattern& table, const isa::Program& program, const DmaConfig& dma, const isa::Limits& limits) {
  const std::int64_t row_elements = std::max<std::int64_t>(1, rows.elements() / std::max<std::int64_t>(1, i.src1.elements()));
  const std::int64_t run = std::min(row_elements, run_elements(rows, space_of(rows, program)));
  DmaTransfer t = in_descriptors(rows.elements(), run, wider_bytes(rows, table), dma, limits);
  const bool gather = i.opcode == Opcode::kDmaGather;
  add_hbm(t, rows, !gather, program);
  const Bytes touched(space_of(table, program) == MemorySpace::kHbm ? rows.elements() * isa::size_bytes(table.dtype) : 0);
  if (gather) {
    t.hbm_read += touched;
    return t;
  }
  // Accumulating reads what it writes: half the rate (NKI architecture guide, DMA accumulate).
  t.hbm_read += touched;
  t.hbm_written += touched;
  t.descriptor_time = t.descriptor_time * 2;
  return t;
}

}  // namespace

DmaTransfer dma_transfer(const Instruction& i, const isa::Program& program, const DmaConfig& dma, const isa::Limits& limits) {
  switch (i.opcode) {
    case Opcode::kDmaGather: return indexed(i, i.dst, i.src0, program, dma, limits);
    case Opcode::kDmaScatterAdd: return indexed(i, i.src0, i.dst, program, dma, limits);
    default: return copy(i, program, dma, limits);
  }
}

}  // namespace trellis::sim
