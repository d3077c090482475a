#include "sim/profile/operand_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::DType;

constexpr std::int64_t kPartitionStride = 0x40000;
constexpr std::uint64_t kPsum = 0x2000000;
constexpr std::uint64_t kChipBytes = 2 * kPsum;
constexpr std::uint64_t kChipWindow = 0x2000000000;  // set in addresses of the chip's own memories
constexpr std::uint64_t kTables = std::uint64_t{1} << 52;  // tensors that are named by a table
constexpr std::uint32_t kSbufBuffer = 0, kPsumBuffer = 1, kFirstHbm = 2;
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

/// A dimension; a count of one needs none. False: no room.
bool add_dim(AccessPattern& a, std::int64_t count, std::int64_t stride) {
  if (count == 1) return true;
  if (a.num_dims == isa::kMaxFreeDims || count > INT32_MAX) return false;
  a.dims[a.num_dims++] = {stride, static_cast<std::int32_t>(count)};
  return true;
}

bool sane(const std::vector<std::int64_t>& counts) {
  std::int64_t product = 1;
  for (const std::int64_t count : counts) {
    if (count < 1 || count > kMostElements / product) return false;
    product *= count;
  }
  return true;
}

bool divides(std::int64_t size, const std::vector<std::int64_t>& strides) {
  return std::all_of(strides.begin(), strides.end(),
                     [&](std::int64_t stride) { return stride % size == 0; });
}

}  // namespace

OperandImport::OperandImport(isa::Program& program, const isa::Limits& limits)
    : program_(program), limits_(limits) {
  const auto partitions = static_cast<std::uint16_t>(limits.partitions);
  program_.buffers.push_back(
      {.space = isa::MemorySpace::kSbuf,
       .name = "sbuf",
       .num_partitions = partitions,
       .bytes_per_partition = static_cast<std::uint32_t>(limits.sbuf_bytes_per_partition)});
  program_.buffers.push_back(
      {.space = isa::MemorySpace::kPsum,
       .name = "psum",
       .num_partitions = partitions,
       .bytes_per_partition = static_cast<std::uint32_t>(limits.psum_bytes_per_partition)});
}

std::optional<DType> OperandImport::dtype_of(const std::string& word) {
  if (word == "bfloat16") return DType::kBf16;
  if (word == "float32") return DType::kFp32;
  if (word == "float16") return DType::kFp16;
  if (word == "uint32") return DType::kInt32;
  if (word == "uint16") return DType::kInt16;
  if (word == "fp8e4" || word == "fp8_e4m3") return DType::kFp8E4M3;
  if (word == "fp8e5" || word == "fp8_e5m2") return DType::kFp8E5M2;
  return isa::parse_name<DType>(word);
}

AccessPattern OperandImport::on_chip(const OperandText& text, const std::string& key,
                                     std::int64_t partitions, DType dtype, const Fail& fail) const {
  AccessPattern a;
  if (!text.dtype.empty()) {
    const auto found = dtype_of(text.dtype);
    if (!found) fail(key, fmt::format("unknown dtype \"{}\"", text.dtype));
    dtype = found.value_or(dtype);
  }
  a.dtype = dtype;
  const std::int64_t size = isa::size_bytes(dtype);
  if (text.address >= kChipBytes || !sane(text.counts) || partitions < 1 || partitions > 0xffff) {
    fail(key, fmt::format("address {:#x} on {} partitions lies outside SBUF and PSUM", text.address,
                          partitions));
    return a;
  }
  const bool psum = text.address >= kPsum;
  const auto offset = static_cast<std::int64_t>(text.address % kPartitionStride);
  a.buffer = psum ? kPsumBuffer : kSbufBuffer;
  a.start_partition = static_cast<std::uint16_t>(text.address % kPsum / kPartitionStride);
  a.num_partitions = static_cast<std::uint16_t>(partitions);
  if (offset % size != 0)
    fail(key, fmt::format("address {:#x} is no multiple of {} bytes", text.address, size));
  a.offset = offset / size;
  for (std::size_t d = text.counts.size(); d-- > 0;) {
    if (!add_dim(a, text.counts[d], text.strides[d]))
      fail(key, fmt::format("has more than {} dimensions", isa::kMaxFreeDims));
  }
  return a;
}

std::optional<OperandImport::Side> OperandImport::read_side(const InstructionText& text,
                                                            const std::string& name,
                                                            const Fail& fail) const {
  Side side;
  const auto number = [&](const std::string& key) {
    const auto value = text.find(name + key);
    return value ? read_integer(*value) : std::nullopt;
  };
  const auto address = number("_addr_imm"), table = number("_table_index");
  const auto size = number("_elem_size");
  const auto pattern = read_pattern_text(text.find(name + "_pattern").value_or(""));
  if (!pattern || !sane(pattern->counts)) {
    fail(name + "_pattern", "expected [strides][counts] with counts from 1 on");
    return std::nullopt;
  }
  if (!size || *size < 1 || *size > (std::int64_t{1} << 32)) {
    fail(name + "_elem_size", "expected a number of bytes");
    return std::nullopt;
  }
  if (address && *address >= 0) {
    side.address = static_cast<std::uint64_t>(*address);
    side.chip = (side.address & kChipWindow) != 0;
  } else if (table && *table >= 0 && *table < (1 << 10)) {
    const std::int64_t offset = number("_table_offset_imm").value_or(0);
    side.address = kTables + (static_cast<std::uint64_t>(*table) << 42) +
                   static_cast<std::uint64_t>(std::clamp<std::int64_t>(offset, 0, kMostElements));
  } else {
    fail(name + "_addr_imm", "expected an address or a table's index");
    return std::nullopt;
  }
  side.element_bytes = *size;
  side.pattern = *pattern;
  side.dtype = dtype_of(text.find(name == "src" ? "in_dtype" : "out_dtype").value_or(""));
  return side;
}

AccessPattern OperandImport::pattern_of(const Side& side, const std::string& name, DType dtype,
                                        const Fail& fail) {
  AccessPattern a;
  a.dtype = dtype;
  const std::int64_t size = isa::size_bytes(dtype);
  const OperandText& p = side.pattern;
  const std::size_t outer = p.counts.size() - 1;
  if (p.counts[outer] > 0xffff) fail(name + "_pattern", "has more than 65,535 rows");
  a.num_partitions = static_cast<std::uint16_t>(std::min<std::int64_t>(p.counts[outer], 0xffff));
  bool room = true;
  for (std::size_t d = outer; d-- > 0;) room = add_dim(a, p.counts[d], p.strides[d] / size) && room;
  if (!add_dim(a, side.element_bytes / size, 1) || !room)
    fail(name + "_pattern", fmt::format("has more than {} dimensions", isa::kMaxFreeDims));
  if (side.chip) {
    const std::uint64_t at = side.address % kChipBytes;
    a.buffer = at >= kPsum ? kPsumBuffer : kSbufBuffer;
    a.start_partition = static_cast<std::uint16_t>(at % kPsum / kPartitionStride);
    a.offset = static_cast<std::int64_t>(at % kPartitionStride) / size;
    return a;
  }
  a.partition_stride = p.strides[outer] / size;
  std::int64_t first = 0, last = side.element_bytes;
  for (std::size_t d = 0; d < p.counts.size(); ++d) {
    if (std::abs(p.strides[d]) > kMostElements) {
      fail(name + "_pattern", "a stride is outside of the memory");
      return a;
    }
    (p.strides[d] < 0 ? first : last) += p.strides[d] * (p.counts[d] - 1);
  }
  if (static_cast<std::int64_t>(side.address) + first < 0 || last - first > kMostElements) {
    fail(name + "_pattern", fmt::format("reaches bytes [{}, {}) from {:#x}: outside of the memory",
                                        first, last, side.address));
    return a;
  }
  a.buffer = static_cast<std::uint32_t>(kFirstHbm + ranges_.size());
  ranges_.push_back({side.address + static_cast<std::uint64_t>(first),
                     side.address + static_cast<std::uint64_t>(last)});
  a.offset = static_cast<std::int64_t>(side.address);  // in bytes until bind_hbm
  return a;
}

/// The partitions of the chip's side become the outermost dimension of both.
void OperandImport::partitions_outermost(Side& source, Side& target) {
  const Side& chip = source.chip ? source : target;
  if (!chip.chip) return;
  const auto& strides = chip.pattern.strides;
  const auto found = std::find(strides.begin(), strides.end(), kPartitionStride);
  if (found == strides.end()) return;
  const auto d = found - strides.begin();
  for (OperandText* p : {&source.pattern, &target.pattern}) {
    if (static_cast<std::size_t>(d) >= p->counts.size()) continue;
    std::rotate(p->counts.begin() + d, p->counts.begin() + d + 1, p->counts.end());
    std::rotate(p->strides.begin() + d, p->strides.begin() + d + 1, p->strides.end());
  }
}

void OperandImport::transfer(const InstructionText& text, isa::Instruction& out, const Fail& fail) {
  auto source = read_side(text, "src", fail), target = read_side(text, "dst", fail);
  if (!source || !target) return;
  partitions_outermost(*source, *target);
  const auto fits = [](const Side& side, std::int64_t size) {
    return side.element_bytes % size == 0 && side.address % static_cast<std::uint64_t>(size) == 0 &&
           divides(size, side.pattern.strides);
  };
  const auto both = [&](std::int64_t size) { return fits(*source, size) && fits(*target, size); };
  const DType plain = both(4) ? DType::kInt32 : both(2) ? DType::kInt16 : DType::kUInt8;
  const bool cast = source->dtype && target->dtype;
  const auto bind = [&](const Side& side, const std::string& name) {
    const DType dtype = cast ? *side.dtype : plain;
    if (!fits(side, isa::size_bytes(dtype)))
      fail(name + "_pattern",
           fmt::format("does not divide into elements of {} bytes", isa::size_bytes(dtype)));
    return pattern_of(side, name, dtype, fail);
  };
  out.src0 = bind(*source, "src");
  out.dst = bind(*target, "dst");
}

void OperandImport::bind_hbm() {
  std::vector<Range> merged;
  std::vector<Range> sorted = ranges_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : sorted) {
    if (merged.empty() || range.begin > merged.back().end) {
      merged.push_back({range.begin & ~std::uint64_t{63}, range.end});
    } else {
      merged.back().end = std::max(merged.back().end, range.end);
    }
  }
  for (const Range& range : merged) {
    const bool table = range.begin >= kTables;
    program_.buffers.push_back(
        {.space = isa::MemorySpace::kHbm,
         .name = table ? fmt::format("table {}", (range.begin - kTables) >> 42)
                       : fmt::format("hbm {:#x}", range.begin),
         .bytes = static_cast<std::int64_t>(range.end - range.begin),
         .slot = table ? static_cast<std::int32_t>((range.begin - kTables) >> 42) : -1});
  }
  for (auto& queue : program_.segments.front().queues) {
    for (auto& instruction : queue) {
      for (AccessPattern* a : {&instruction.dst, &instruction.src0}) {
        if (!a->present() || a->buffer < kFirstHbm) continue;
        const std::uint64_t begin = ranges_[a->buffer - kFirstHbm].begin;
        const auto at = std::upper_bound(
            merged.begin(), merged.end(), begin,
            [](std::uint64_t value, const Range& range) { return value < range.begin; });
        a->buffer = static_cast<std::uint32_t>(kFirstHbm + (at - merged.begin()) - 1);
        a->offset =
            (a->offset - static_cast<std::int64_t>((at - 1)->begin)) / isa::size_bytes(a->dtype);
      }
    }
  }
}

}  // namespace trellis::sim
