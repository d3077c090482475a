#include "sim/isa/program.h"

namespace trellis::sim::isa {

std::int64_t AccessPattern::elements_per_partition() const {
  std::int64_t n = 1;
  for (int d = 0; d < num_dims; ++d) n *= dims[d].count;
  return n;
}

std::int64_t AccessPattern::contiguous_bytes() const {
  std::int64_t run = 1;
  for (int d = num_dims - 1; d >= 0; --d) {
    if (dims[d].count == 1) continue;
    if (dims[d].stride != run) break;
    run *= dims[d].count;
  }
  return run * size_bytes(dtype);
}

namespace {

void feed(ContentHasher& hasher, const Buffer& b) {
  hasher.value(b.space);
  hasher.text(b.name);
  hasher.value(b.bytes);
  hasher.value(b.slot);
  hasher.value(b.start_partition);
  hasher.value(b.num_partitions);
  hasher.value(b.bytes_per_partition);
  hasher.value(b.address);
}

void feed(ContentHasher& hasher, const AccessPattern& a) {
  hasher.value(a.buffer);
  if (!a.present()) return;
  hasher.value(a.dtype);
  hasher.value(a.start_partition);
  hasher.value(a.num_partitions);
  hasher.value(a.offset);
  hasher.value(a.partition_stride);
  hasher.value(a.num_dims);
  for (int d = 0; d < a.num_dims; ++d) {
    hasher.value(a.dims[d].stride);
    hasher.value(a.dims[d].count);
  }
  for (std::int64_t stride : a.loop_stride) hasher.value(stride);
  hasher.value(a.rotate_count);
  hasher.value(a.rotate_stride);
}

template <typename T>
void feed_semaphores(ContentHasher& hasher, const std::vector<T>& list) {
  hasher.value(list.size());
  for (const T& entry : list) {
    hasher.value(entry.id);
    hasher.value(entry.value);
  }
}

void feed(ContentHasher& hasher, const Instruction& i) {
  hasher.value(i.opcode);
  hasher.value(i.alu);
  hasher.value(i.alu2);
  hasher.value(i.activation);
  hasher.value(i.dma_queue);
  hasher.value(i.mode);
  hasher.value(i.dma_descriptors);
  hasher.value(i.accumulate);
  hasher.value(i.overwrite_first);
  hasher.value(i.kernel);
  hasher.value(i.count);
  hasher.value(i.imm0);
  hasher.value(i.imm1);
  feed(hasher, i.dst);
  feed(hasher, i.src0);
  feed(hasher, i.src1);
  feed(hasher, i.dst1);
  feed_semaphores(hasher, i.waits);
  feed_semaphores(hasher, i.updates);
}

void feed(ContentHasher& hasher, const Kernel& k) {
  hasher.text(k.name);
  hasher.value(k.node);
  hasher.value(k.flops);
  hasher.value(k.estimated);
}

void feed(ContentHasher& hasher, const CommPoint& point) {
  hasher.value(point.action);
  hasher.value(point.slot);
}

template <typename T>
void feed(ContentHasher& hasher, const std::vector<T>& list) {
  hasher.value(list.size());
  for (const T& entry : list) feed(hasher, entry);
}

}  // namespace

ContentHash Program::hash() const {
  ContentHasher hasher;
  hasher.text(name);
  feed(hasher, buffers);
  feed(hasher, kernels);
  hasher.value(segments.size());
  for (const Segment& segment : segments) {
    for (const auto& queue : segment.queues) feed(hasher, queue);
    feed(hasher, segment.then);
  }
  return hasher.finish();
}

std::int64_t Program::instruction_count() const {
  std::int64_t n = 0;
  for (const Segment& segment : segments) {
    for (const auto& queue : segment.queues) n += static_cast<std::int64_t>(queue.size());
  }
  return n;
}

}  // namespace trellis::sim::isa
