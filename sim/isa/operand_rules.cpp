#include <fmt/format.h>

#include <array>
#include <numeric>

#include "sim/isa/extent.h"
#include "sim/isa/rules.h"

namespace trellis::sim::isa {
namespace {

// An engine's access pattern: sizes are uint16 and strides int16 (NKI architecture guide,
// hardware.md §2.6).
constexpr int kMaxDimCount = 65535;
constexpr std::int64_t kMaxDimStride = 32767;

void check_partitions(int start, int count, const Limits& limits, const std::string& who,
                      std::vector<std::string>& out) {
  if (count < 1 || start + count > limits.partitions) {
    out.push_back(fmt::format("{} uses partitions [{}, {}), the core has {}", who, start,
                              start + count, limits.partitions));
  } else if (!legal_partition_start(start, count)) {
    out.push_back(
        fmt::format("{} starts {} partitions at {}: more than 64 must start at 0, 33 to 64 at 0 or "
                    "64, up to 32 at a multiple of 32",
                    who, count, start));
  }
}

/// How loops and rotation move a tile: `count` positions at a distance of `stride` bytes.
struct Movement {
  std::int64_t stride = 0, count = 1;
};

std::int64_t wrap(std::int64_t x, std::int64_t bank) { return ((x % bank) + bank) % bank; }

/// An offset in its bank at which a tile of `width` bytes crosses the end, among all that the
/// movements reach; -1: none does.
std::int64_t crossing_offset(std::int64_t base, std::int64_t width, std::int64_t bank,
                             std::span<const Movement> movements) {
  // All offsets are equal modulo g: when a tile stays inside its g bytes, nothing has to be
  // enumerated.
  std::int64_t g = bank;
  for (const Movement& m : movements) g = m.count > 1 ? std::gcd(g, m.stride) : g;
  if (base % g + width <= g) return -1;
  std::vector<bool> reached(static_cast<std::size_t>(bank));
  std::vector<std::int64_t> offsets{wrap(base, bank)};
  reached[static_cast<std::size_t>(offsets.front())] = true;
  for (const Movement& m : movements) {
    const std::size_t before = offsets.size();
    for (std::size_t o = 0; o < before; ++o) {
      std::int64_t at = offsets[o];
      for (std::int64_t i = 1; i < std::min(m.count, bank); ++i) {
        at = wrap(at + m.stride, bank);
        if (at == offsets[o]) break;  // once around
        if (reached[static_cast<std::size_t>(at)]) continue;
        reached[static_cast<std::size_t>(at)] = true;
        offsets.push_back(at);
      }
    }
  }
  for (std::int64_t r = bank - width + 1; r < bank; ++r) {
    if (reached[static_cast<std::size_t>(r)]) return r;
  }
  return -1;
}

void check_single_bank(const AccessPattern& a, const Buffer& buffer, const RuleContext& context,
                       std::vector<std::string>& out) {
  const std::int64_t bank = context.limits.psum_bank_bytes;
  const Extent tile = tile_extent(a, MemorySpace::kPsum);
  const std::int64_t size = size_bytes(a.dtype);
  const std::int64_t width = (tile.last - tile.first + 1) * size;
  if (width > bank) {
    out.push_back(
        fmt::format("dst spans {} bytes per partition, a PSUM bank holds {}", width, bank));
    return;
  }
  std::array<Movement, kMaxLoopDepth + 1> movements;
  const std::size_t loops = std::min<std::size_t>(context.loop_counts.size(), kMaxLoopDepth);
  for (std::size_t d = 0; d < loops; ++d)
    movements[d] = {a.loop_stride[d] * size, context.loop_counts[d]};
  movements[loops] = {a.rotate_stride * size, a.rotate_count};
  const std::int64_t base = wrap(buffer.address + tile.first * size, bank);
  const std::int64_t offset =
      crossing_offset(base, width, bank, std::span(movements).first(loops + 1));
  if (offset >= 0)
    out.push_back(fmt::format("dst crosses a PSUM bank: {} bytes from offset {} of a bank of {}",
                              width, offset, bank));
}

void check_range(const AccessPattern& a, const Buffer& buffer, const char* role,
                 const RuleContext& context, std::vector<std::string>& out) {
  const Extent extent = full_extent(a, buffer.space, context.loop_counts);
  const std::int64_t size = size_bytes(a.dtype);
  const std::int64_t room =
      buffer.space == MemorySpace::kHbm ? buffer.bytes : buffer.bytes_per_partition;
  if (extent.first < 0 || (extent.last + 1) * size > room) {
    out.push_back(fmt::format("{} touches bytes [{}, {}) of buffer {} \"{}\", which has {}{}", role,
                              extent.first * size, (extent.last + 1) * size, a.buffer, buffer.name,
                              room, buffer.space == MemorySpace::kHbm ? "" : " per partition"));
  }
}

void check_partition_range(const AccessPattern& a, const Buffer& buffer, const char* role,
                           const Limits& limits, std::vector<std::string>& out) {
  if (buffer.space == MemorySpace::kHbm) {
    if (a.start_partition != 0)
      out.push_back(fmt::format("{} lies in HBM and must start at partition 0, got {}", role,
                                a.start_partition));
    if (a.num_partitions < 1) out.push_back(fmt::format("{} has no rows", role));
    return;
  }
  check_partitions(a.start_partition, a.num_partitions, limits, role, out);
  const int end = a.start_partition + a.num_partitions;
  if (a.start_partition < buffer.start_partition ||
      end > buffer.start_partition + buffer.num_partitions) {
    out.push_back(fmt::format("{} uses partitions [{}, {}), buffer {} \"{}\" has [{}, {})", role,
                              a.start_partition, end, a.buffer, buffer.name, buffer.start_partition,
                              buffer.start_partition + buffer.num_partitions));
  }
}

void check_dims(const AccessPattern& a, const char* role, bool on_engine,
                std::vector<std::string>& out) {
  for (int d = 0; d < a.num_dims; ++d) {
    if (a.dims[d].count < 1 || (on_engine && a.dims[d].count > kMaxDimCount)) {
      out.push_back(fmt::format("{} dimension {} has {} elements, legal are 1 to {}", role, d,
                                a.dims[d].count, kMaxDimCount));
    }
    if (on_engine && a.dims[d].count > 1 && std::abs(a.dims[d].stride) > kMaxDimStride) {
      out.push_back(fmt::format("{} dimension {} has stride {}, an engine reaches ±{}", role, d,
                                a.dims[d].stride, kMaxDimStride));
    }
  }
}

void check_space(const AccessPattern& a, const Buffer& buffer, const char* role,
                 const RuleContext& context, std::vector<std::string>& out) {
  if (buffer.space == MemorySpace::kHbm)
    out.push_back(fmt::format("{} lies in HBM: only DMA reaches it", role));
  if (buffer.space == MemorySpace::kPsum && context.engine == Engine::kGpSimd)
    out.push_back(fmt::format("{} lies in PSUM: GpSimd has no path to it", role));
  if (size_bytes(a.dtype) > 4)
    out.push_back(
        fmt::format("{} has dtype {}, engines work on at most 4 bytes", role, name(a.dtype)));
}

bool check_operand(const AccessPattern& a, const char* role, bool on_engine,
                   const RuleContext& context, std::vector<std::string>& out) {
  if (!a.present()) return true;
  if (a.buffer >= context.program.buffers.size()) {
    out.push_back(fmt::format("{} names buffer {}, the program has {}", role, a.buffer,
                              context.program.buffers.size()));
    return false;
  }
  if (a.num_dims > kMaxFreeDims) {
    out.push_back(
        fmt::format("{} has {} free dimensions, at most {} exist", role, a.num_dims, kMaxFreeDims));
    return false;
  }
  const Buffer& buffer = context.program.buffers[a.buffer];
  check_dims(a, role, on_engine, out);
  check_partition_range(a, buffer, role, context.limits, out);
  check_range(a, buffer, role, context, out);
  if (on_engine) check_space(a, buffer, role, context, out);
  if (a.rotate_count < 1)
    out.push_back(fmt::format("{} rotates over {} buffers", role, a.rotate_count));
  return true;
}

}  // namespace

bool legal_partition_start(int start, int count) {
  if (count > 64) return start == 0;
  if (count > 32) return start == 0 || start == 64;
  return start % 32 == 0;
}

void check_buffer(const Buffer& buffer, const Limits& limits, std::vector<std::string>& out) {
  if (buffer.space == MemorySpace::kHbm) {
    if (buffer.bytes < 0) out.push_back(fmt::format("has {} bytes", buffer.bytes));
    return;
  }
  check_partitions(buffer.start_partition, buffer.num_partitions, limits, "the buffer", out);
  const std::int64_t capacity = buffer.space == MemorySpace::kSbuf
                                    ? limits.sbuf_bytes_per_partition
                                    : limits.psum_bytes_per_partition;
  const std::int64_t end = static_cast<std::int64_t>(buffer.address) + buffer.bytes_per_partition;
  if (end > capacity) {
    out.push_back(fmt::format("ends at byte {} of a partition, {} has {}", end, name(buffer.space),
                              capacity));
  }
}

bool check_operands(const Instruction& i, const RuleContext& context,
                    std::vector<std::string>& out) {
  const bool on_engine = !is_dma(i.opcode);
  bool known = check_operand(i.dst, "dst", on_engine, context, out);
  known = check_operand(i.src0, "src0", on_engine, context, out) && known;
  known = check_operand(i.src1, "src1", on_engine, context, out) && known;
  known = check_operand(i.dst1, "dst1", on_engine, context, out) && known;
  const bool to_psum = i.opcode == Opcode::kMatmul || i.opcode == Opcode::kTranspose;
  if (!known || !to_psum || !i.dst.present()) return known;
  const Buffer& target = context.program.buffers[i.dst.buffer];
  const bool one_bank = context.limits.max_moving * size_bytes(DType::kFp32) <=
                        context.limits.psum_bank_bytes;  // v4 writes across banks
  if (target.space == MemorySpace::kPsum && context.engine == Engine::kTensor && one_bank)
    check_single_bank(i.dst, target, context, out);
  return known;
}

}  // namespace trellis::sim::isa
