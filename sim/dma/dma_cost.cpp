#include "sim/dma/dma_cost.h"

#include <algorithm>

#include "base/integer_math.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DmaDescriptors;
using isa::Engine;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

/// Builds the transfer of one instruction, step by step.
class Builder {
 public:
  Builder(const Instruction& i, const isa::Program& program, const DmaConfig& dma,
          const isa::Limits& limits, DmaDescriptors descriptors)
      : i_(i),
        program_(program),
        dma_(dma),
        limits_(limits),
        generated_(descriptors != DmaDescriptors::kStatic && dma.generated_rate.value > 0) {}

  DmaTransfer run() {
    switch (i_.opcode) {
      case Opcode::kDmaGather: indexed(i_.dst, i_.src0); break;
      case Opcode::kDmaScatterAdd: indexed(i_.src0, i_.dst); break;
      case Opcode::kDmaTranspose: transpose(); break;
      default: copy(); break;
    }
    cut_packets();
    return t_;
  }

 private:
  [[nodiscard]] bool in_hbm(const AccessPattern& a) const {
    return program_.buffers[a.buffer].space == MemorySpace::kHbm;
  }

  /// Elements of the longest run that one descriptor can cover. In HBM, rows that follow each other
  /// without a gap are one run.
  [[nodiscard]] std::int64_t run_elements(const AccessPattern& a) const {
    const std::int64_t run = a.contiguous_bytes() / isa::size_bytes(a.dtype);
    const bool joined = in_hbm(a) && run == a.elements_per_partition() && a.partition_stride == run;
    return joined ? run * a.num_partitions : run;
  }

  void copy() {
    cut_descriptors(i_.dst.elements(), std::min(run_elements(i_.dst), run_elements(i_.src0)),
                    wider_bytes(i_.dst, i_.src0));
    deal_out(in_hbm(i_.dst) ? i_.src0 : i_.dst);
    touch_hbm(i_.src0, i_.src0.elements(), run_elements(i_.src0), t_.hbm_read);
    touch_hbm(i_.dst, i_.dst.elements(), run_elements(i_.dst), t_.hbm_written);
    if (!i_.accumulate) return;
    touch_hbm(i_.dst, i_.dst.elements(), run_elements(i_.dst), t_.hbm_read);
    slow_down(dma_.accumulate_rate);
  }

  /// Reads rows; the elements land one by one, which the mode's own rate accounts for.
  void transpose() {
    const std::int64_t size = isa::size_bytes(i_.src0.dtype);
    cut_descriptors(i_.src0.elements(), i_.src0.contiguous_bytes() / size, size);
    deal_out(in_hbm(i_.dst) ? i_.src0 : i_.dst);
    touch_hbm(i_.src0, i_.src0.elements(), run_elements(i_.src0), t_.hbm_read);
    touch_hbm(i_.dst, i_.dst.elements(), run_elements(i_.dst), t_.hbm_written);
    slow_down(in_hbm(i_.src0) ? dma_.transpose_rate_hbm : dma_.transpose_rate_sbuf);
  }

  /// `rows`: the side whose rows the indices name one by one, as many elements as are moved. The
  /// other operand is the whole table.
  void indexed(const AccessPattern& rows, const AccessPattern& table) {
    const std::int64_t row =
        std::max<std::int64_t>(1, rows.elements() / std::max<std::int64_t>(1, i_.src1.elements()));
    const std::int64_t run = std::min(row, run_elements(rows));
    cut_descriptors(rows.elements(), run, wider_bytes(rows, table));
    deal_out(rows);
    const bool gather = i_.opcode == Opcode::kDmaGather;
    touch_hbm(rows, rows.elements(), run_elements(rows), gather ? t_.hbm_written : t_.hbm_read);
    touch_hbm(table, rows.elements(), row, t_.hbm_read);
    if (gather) return;
    touch_hbm(table, rows.elements(), row, t_.hbm_written);
    slow_down(dma_.accumulate_rate);
  }

  /// A cast moves the wider of the two formats through the engine.
  static std::int64_t wider_bytes(const AccessPattern& a, const AccessPattern& b) {
    return std::max(isa::size_bytes(a.dtype), isa::size_bytes(b.dtype));
  }

  /// `elements` in runs of `run` elements; runs longer than a descriptor are cut.
  void cut_descriptors(std::int64_t elements, std::int64_t run, std::int64_t element_bytes) {
    const std::int64_t cut =
        std::max<std::int64_t>(1, limits_.max_descriptor_bytes / element_bytes);
    const std::int64_t per_run = ceil_div(run, cut);
    t_.descriptors = ceil_div(elements, run) * per_run;
    t_.bytes = Bytes(elements * element_bytes);
    descriptor_bytes_ = ceil_div(run, per_run) * element_bytes;
    t_.descriptor_time = generated_
                             ? dma_.generated_descriptor +
                                   transfer_time(Bytes(descriptor_bytes_), dma_.generated_rate)
                             : std::max(dma_.descriptor_floor,
                                        transfer_time(Bytes(descriptor_bytes_), dma_.engine_rate));
  }

  void deal_out(const AccessPattern& side) {
    if (in_hbm(side)) {
      t_.per_engine = ceil_div(t_.descriptors, dma_.engines);
    } else {
      const std::int64_t partitions_of_engine = std::max(1, limits_.partitions / dma_.engines);
      const std::int64_t partitions = side.num_partitions;
      t_.first_engine = static_cast<int>(side.start_partition / partitions_of_engine);
      t_.per_engine =
          ceil_div(t_.descriptors * std::min(partitions_of_engine, partitions), partitions);
    }
    t_.num_engines = static_cast<int>(ceil_div(t_.descriptors, t_.per_engine));
  }

  void touch_hbm(const AccessPattern& a, std::int64_t elements, std::int64_t run, Bytes& traffic) {
    if (!in_hbm(a)) return;
    const std::int64_t size = isa::size_bytes(a.dtype);
    const Bytes bytes(elements * size);
    traffic += bytes;
    const double part = run < elements ? dma_.hbm_part(static_cast<double>(run * size)) : 1.0;
    t_.hbm_load += static_cast<std::int64_t>(static_cast<double>(bytes.value) / part);
  }

  void slow_down(double rate) {
    t_.descriptor_time = Picoseconds(
        static_cast<std::int64_t>(static_cast<double>(t_.descriptor_time.value) / rate));
  }

  void cut_packets() {
    const std::int64_t bytes =
        (i_.dma_queue == isa::DmaQueue::kCollective ? dma_.collective_packet : dma_.packet).value;
    t_.packet = std::clamp<std::int64_t>(bytes / descriptor_bytes_, 1, dma_.packet_descriptors);
  }

  const Instruction& i_;
  const isa::Program& program_;
  const DmaConfig& dma_;
  const isa::Limits& limits_;
  const bool generated_;  ///< by hardware or software: no floor
  std::int64_t descriptor_bytes_ = 1;
  DmaTransfer t_;
};

}  // namespace

DmaDescriptors resolve_descriptors(const Instruction& i, Engine issuer, const DmaConfig& dma) {
  if (i.dma_descriptors != DmaDescriptors::kDefault) return i.dma_descriptors;
  const bool by_index = i.opcode == Opcode::kDmaGather || i.opcode == Opcode::kDmaScatterAdd;
  if (by_index)
    return issuer == Engine::kGpSimd ? DmaDescriptors::kSoftware : DmaDescriptors::kStatic;
  const bool reaches_generator = issuer == Engine::kSync || issuer == Engine::kScalar;
  if (i.opcode == Opcode::kDmaTranspose && isa::size_bytes(i.src0.dtype) != 2)
    return DmaDescriptors::kStatic;
  return dma.hardware_generators > 0 && reaches_generator ? DmaDescriptors::kHardware
                                                          : DmaDescriptors::kStatic;
}

namespace {

/// Software makes descriptors one by one.
Picoseconds generation(Picoseconds least, const DmaTransfer& t, const DmaConfig& dma) {
  return std::max(least, Picoseconds(dma.software_descriptor.value * t.descriptors));
}

}  // namespace

DmaTransfer dma_transfer(const Instruction& i, Engine issuer, const isa::Program& program,
                         const DmaConfig& dma, const isa::Limits& limits) {
  const DmaDescriptors descriptors = resolve_descriptors(i, issuer, dma);
  DmaTransfer t = Builder(i, program, dma, limits, descriptors).run();
  const bool store = program.buffers[i.dst.buffer].space == MemorySpace::kHbm;
  t.completion = dma.generated_completion;
  switch (descriptors) {
    case DmaDescriptors::kSoftware:
      t.preparation = generation(dma.software_generation, t, dma);
      t.trigger = dma.software_trigger;
      t.latency = store ? dma.software_store_latency : dma.software_load_latency;
      break;
    case DmaDescriptors::kHardware:
      t.generator = issuer == Engine::kSync ? 0 : 1;
      t.trigger = dma.hardware_trigger;
      t.latency = store ? dma.hardware_store_latency : dma.hardware_load_latency;
      break;
    default:
      t.trigger = dma.trigger_time;
      t.latency = dma.fixed_latency;
      t.completion = dma.completion_latency;
  }
  return t;
}

void follow_software(DmaTransfer& transfer, const DmaConfig& dma) {
  transfer.preparation = generation(dma.software_next, transfer, dma);
}

}  // namespace trellis::sim
