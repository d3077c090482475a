#include "analysis/accuracy/dma_programs.h"

#include <algorithm>

namespace trellis::analysis {
namespace {

using namespace sim::isa;

AccessPattern tile(std::uint32_t buffer, DType dtype, int partitions, std::int64_t columns) {
  AccessPattern a;
  a.buffer = buffer;
  a.dtype = dtype;
  a.num_partitions = static_cast<std::uint16_t>(partitions);
  a.num_dims = 1;
  a.dims[0] = {1, static_cast<std::int32_t>(columns)};
  return a;
}

/// Rows that follow each other in HBM; the next tile follows with each iteration.
AccessPattern rows(std::uint32_t buffer, DType dtype, int partitions, std::int64_t columns) {
  AccessPattern a = tile(buffer, dtype, partitions, columns);
  a.partition_stride = columns;
  a.loop_stride[0] = partitions * columns;
  return a;
}

Buffer hbm(const char* name, std::int64_t bytes, int slot) {
  return {MemorySpace::kHbm, name, bytes, slot, 0, 0, 0, 0};
}
Buffer sbuf(const char* name, std::int64_t row_bytes, std::int64_t address) {
  return {MemorySpace::kSbuf,
          name,
          0,
          -1,
          0,
          128,
          static_cast<std::uint32_t>(row_bytes),
          static_cast<std::uint32_t>(address)};
}

Instruction dma(const AccessPattern& dst, const AccessPattern& src, DmaQueue queue,
                std::uint32_t kernel) {
  Instruction i;
  i.opcode = Opcode::kDma;
  i.dst = dst;
  i.src0 = src;
  i.dma_queue = queue;
  i.kernel = kernel;
  return i;
}

Instruction wait_for(Instruction i, std::uint16_t semaphore, std::uint16_t value = 1) {
  i.waits.push_back({semaphore, value});
  return i;
}
Instruction then_post(Instruction i, std::uint16_t semaphore, std::uint16_t value = 1) {
  i.updates.push_back({semaphore, value});
  return i;
}

void append_loop(std::vector<Instruction>& queue, std::int64_t count,
                 const std::vector<Instruction>& body) {
  if (count == 0) return;
  Instruction loop;
  loop.opcode = Opcode::kLoop;
  loop.count = count;
  Instruction end;
  end.opcode = Opcode::kEndLoop;
  queue.push_back(loop);
  queue.insert(queue.end(), body.begin(), body.end());
  queue.push_back(end);
}

std::vector<Instruction>& queue_of(Segment& segment, Engine engine) {
  return segment.queues[static_cast<std::size_t>(engine)];
}

}  // namespace

Program tile_loads(const TileLoads& what) {
  const auto issuers = static_cast<std::int64_t>(what.issuers.size());
  const std::int64_t turns = (what.tiles + issuers - 1) / issuers;
  const std::int64_t stride = std::max(what.row_stride_bytes, what.row_bytes);
  Program p;
  p.name = "tile loads";
  p.buffers = {hbm("x", turns * issuers * what.partitions * stride, 0),
               sbuf("tile", what.row_bytes, 0)};
  p.kernels = {{"load", 0, 0, false}};
  Segment segment;
  for (std::int64_t n = 0; n < issuers; ++n) {
    AccessPattern src = rows(0, DType::kUInt8, what.partitions, what.row_bytes);
    src.partition_stride = stride;
    src.offset = n * what.partitions * stride;
    src.loop_stride[0] = issuers * what.partitions * stride;
    Instruction load =
        dma(tile(1, DType::kUInt8, what.partitions, what.row_bytes), src, DmaQueue::kLoad, 0);
    load.dma_descriptors = what.descriptors;
    append_loop(queue_of(segment, what.issuers[static_cast<std::size_t>(n)]), turns, {load});
  }
  p.segments.push_back(segment);
  return p;
}

Program load_exp_store(int partitions, int columns, bool software) {
  constexpr std::uint16_t kLoaded = 0, kReady = 1;
  const std::int64_t row = columns * 2;
  Program p;
  p.name = "load, exp, store";
  p.buffers = {hbm("x", partitions * row, 0), hbm("out", partitions * row, 1),
               sbuf("in tile", row, 0), sbuf("out tile", row, row)};
  p.kernels = {{"load", 0, 0, false}, {"exp", 0, 0, false}, {"store", 0, 0, false}};
  // A trigger of figure 3 takes 66 to 85 ns: one by hardware holds its engine 517 to 605.
  const DmaDescriptors descriptors = software ? DmaDescriptors::kSoftware : DmaDescriptors::kStatic;
  Segment segment;
  Instruction load = then_post(dma(tile(2, DType::kBf16, partitions, columns),
                                   rows(0, DType::kBf16, partitions, columns), DmaQueue::kLoad, 0),
                               kLoaded);
  load.dma_descriptors = descriptors;
  queue_of(segment, software ? Engine::kGpSimd : Engine::kSync).push_back(load);
  Instruction exp;
  exp.opcode = Opcode::kActivation;
  exp.activation = Activation::kExp;
  exp.imm0 = 1;
  exp.kernel = 1;
  exp.dst = tile(3, DType::kBf16, partitions, columns);
  exp.src0 = tile(2, DType::kBf16, partitions, columns);
  queue_of(segment, Engine::kScalar).push_back(then_post(wait_for(exp, kLoaded), kReady));
  Instruction store = wait_for(dma(rows(1, DType::kBf16, partitions, columns),
                                   tile(3, DType::kBf16, partitions, columns), DmaQueue::kStore, 2),
                               kReady);
  store.dma_descriptors = descriptors;
  queue_of(segment, Engine::kGpSimd).push_back(store);
  p.segments.push_back(segment);
  return p;
}

}  // namespace trellis::analysis
