// The text form of a program. Grammar, one record a line; fields that hold their default are left
// out:
//   program "name"
//   buffer "name" hbm bytes=4096 slot=0
//   buffer "name" sbuf partitions=0+128 bytes_per_partition=512 address=1024
//   kernel "name" node=3 flops=1024 estimated
//   segment
//   queue tensor
//     matmul kernel=0 accumulate dst=<operand> src0=<operand> wait=3,1 post=4,1
//   then start 0
// operand: <buffer>:<dtype>:p<start>+<count>[:o<offset>][:s<partition
// stride>][:d<count>*<stride>,…][:l<loop stride>,…][:r<count>*<stride>]
#include <fmt/format.h>

#include <iterator>

#include "sim/isa/program.h"

namespace trellis::sim::isa {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

void print_buffer(Out out, const Buffer& b) {
  fmt::format_to(out, "buffer {} {}", quoted(b.name), name(b.space));
  if (b.bytes != 0) fmt::format_to(out, " bytes={}", b.bytes);
  if (b.slot != -1) fmt::format_to(out, " slot={}", b.slot);
  if (b.num_partitions != 0 || b.start_partition != 0)
    fmt::format_to(out, " partitions={}+{}", b.start_partition, b.num_partitions);
  if (b.bytes_per_partition != 0)
    fmt::format_to(out, " bytes_per_partition={}", b.bytes_per_partition);
  if (b.address != 0) fmt::format_to(out, " address={}", b.address);
  fmt::format_to(out, "\n");
}

void print_loop_strides(Out out, const AccessPattern& a) {
  int used = kMaxLoopDepth;
  while (used > 0 && a.loop_stride[used - 1] == 0) --used;
  for (int d = 0; d < used; ++d) fmt::format_to(out, "{}{}", d == 0 ? ":l" : ",", a.loop_stride[d]);
}

void print_operand(Out out, const char* role, const AccessPattern& a) {
  if (!a.present()) return;
  fmt::format_to(out, " {}={}:{}:p{}+{}", role, a.buffer, name(a.dtype), a.start_partition,
                 a.num_partitions);
  if (a.offset != 0) fmt::format_to(out, ":o{}", a.offset);
  if (a.partition_stride != 0) fmt::format_to(out, ":s{}", a.partition_stride);
  for (int d = 0; d < a.num_dims; ++d)
    fmt::format_to(out, "{}{}*{}", d == 0 ? ":d" : ",", a.dims[d].count, a.dims[d].stride);
  print_loop_strides(out, a);
  if (a.rotate_count != 1 || a.rotate_stride != 0)
    fmt::format_to(out, ":r{}*{}", a.rotate_count, a.rotate_stride);
}

void print_instruction(Out out, const Instruction& i) {
  fmt::format_to(out, "  {}", name(i.opcode));
  if (i.kernel != 0) fmt::format_to(out, " kernel={}", i.kernel);
  if (i.alu != AluOp::kNone) fmt::format_to(out, " alu={}", name(i.alu));
  if (i.alu2 != AluOp::kNone) fmt::format_to(out, " alu2={}", name(i.alu2));
  if (i.activation != Activation::kIdentity) fmt::format_to(out, " fn={}", name(i.activation));
  if (i.dma_queue != DmaQueue::kLoad) fmt::format_to(out, " ring={}", name(i.dma_queue));
  if (i.mode != MatmulMode::kDense) fmt::format_to(out, " mode={}", name(i.mode));
  if (i.dma_descriptors != DmaDescriptors::kDefault)
    fmt::format_to(out, " descriptors={}", name(i.dma_descriptors));
  if (i.accumulate) fmt::format_to(out, " accumulate");
  if (i.overwrite_first) fmt::format_to(out, " overwrite_first");
  if (i.count != 1) fmt::format_to(out, " count={}", i.count);
  if (i.imm0 != 0) fmt::format_to(out, " imm0={}", i.imm0);
  if (i.imm1 != 0) fmt::format_to(out, " imm1={}", i.imm1);
  print_operand(out, "dst", i.dst);
  print_operand(out, "src0", i.src0);
  print_operand(out, "src1", i.src1);
  print_operand(out, "dst1", i.dst1);
  for (const auto& wait : i.waits) fmt::format_to(out, " wait={},{}", wait.id, wait.value);
  for (const auto& update : i.updates) fmt::format_to(out, " post={},{}", update.id, update.value);
  fmt::format_to(out, "\n");
}

void print_segment(Out out, const Segment& segment) {
  fmt::format_to(out, "segment\n");
  for (int e = 0; e < kNumEngines; ++e) {
    if (segment.queues[e].empty()) continue;
    fmt::format_to(out, "queue {}\n", name(static_cast<Engine>(e)));
    for (const auto& instruction : segment.queues[e]) print_instruction(out, instruction);
  }
  for (const auto& point : segment.then) {
    fmt::format_to(out, "then {} {}\n", point.action == CommAction::kStart ? "start" : "wait",
                   point.slot);
  }
}

}  // namespace

std::string print(const Program& program) {
  std::string text = fmt::format("program {}\n", quoted(program.name));
  Out out(text);
  for (const auto& buffer : program.buffers) print_buffer(out, buffer);
  for (const auto& kernel : program.kernels) {
    fmt::format_to(out, "kernel {} node={} flops={}{}\n", quoted(kernel.name), kernel.node,
                   kernel.flops, kernel.estimated ? " estimated" : "");
  }
  for (const auto& segment : program.segments) print_segment(out, segment);
  return text;
}

}  // namespace trellis::sim::isa
