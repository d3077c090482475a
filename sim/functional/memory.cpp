#include "sim/functional/memory.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace trellis::sim::functional {

using isa::AccessPattern;
using isa::MemorySpace;

Memory::Memory(const isa::Program& program, const isa::Limits& limits)
    : program_(program),
      sbuf_row_(limits.sbuf_bytes_per_partition),
      psum_row_(limits.psum_bytes_per_partition) {
  sbuf_.assign(static_cast<std::size_t>(limits.partitions * sbuf_row_), 0xff);
  psum_.assign(static_cast<std::size_t>(limits.partitions * psum_row_), 0xff);
  for (const auto& buffer : program.buffers)
    hbm_.emplace_back(
        buffer.space == MemorySpace::kHbm ? static_cast<std::size_t>(buffer.bytes) : 0, 0xff);
}

void Memory::write(std::uint32_t buffer, DType dtype, const Values& values) {
  const auto size = static_cast<std::size_t>(isa::size_bytes(dtype));
  if (hbm_.at(buffer).size() < values.size() * size)
    throw std::runtime_error("buffer is smaller than the values for it");
  for (std::size_t i = 0; i < values.size(); ++i)
    encode(dtype, values[i], hbm_[buffer].data() + i * size);
}

Values Memory::read(std::uint32_t buffer, DType dtype, std::int64_t count) const {
  Values out;
  out.reserve(static_cast<std::size_t>(count));
  const auto size = isa::size_bytes(dtype);
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(decode(dtype, hbm_.at(buffer).data() + i * size));
  return out;
}

std::uint8_t* Memory::address(const AccessPattern& a, std::int64_t partition,
                              std::int64_t element) {
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
    return hbm_[a.buffer].data() + at * size;
  }
  const bool sbuf = buffer.space == MemorySpace::kSbuf;
  const std::int64_t byte =
      (a.start_partition + partition) * (sbuf ? sbuf_row_ : psum_row_) + buffer.address + at * size;
  return (sbuf ? sbuf_ : psum_).data() + byte;
}

Memory::View Memory::view(const AccessPattern& a) {
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

double Memory::get(const AccessPattern& a, std::int64_t partition, std::int64_t element) const {
  return decode(a.dtype, const_cast<Memory*>(this)->address(a, partition, element));
}
void Memory::set(const AccessPattern& a, std::int64_t partition, std::int64_t element,
                 double value) {
  encode(a.dtype, value, address(a, partition, element));
}

Memory::View::View(DType dtype, std::uint8_t* first, std::int64_t row_bytes,
                   std::vector<std::int64_t> bytes)
    : dtype_(dtype),
      first_(first),
      row_(row_bytes),
      bytes_(std::move(bytes)),
      size_(isa::size_bytes(dtype)) {
  dense_ = true;
  for (std::size_t e = 0; e < bytes_.size() && dense_; ++e)
    dense_ = bytes_[e] - bytes_[0] == static_cast<std::int64_t>(e) * size_;
}

namespace {
/// Calls `each` with every element's place.
template <typename Each>
void over(std::uint8_t* row, const std::vector<std::int64_t>& bytes, Each each) {
  for (std::size_t e = 0; e < bytes.size(); ++e) each(e, row + bytes[e]);
}
}  // namespace

void Memory::View::gather(std::int64_t partition, float* to) const {
  std::uint8_t* row = first_ + partition * row_;
  if (dtype_ == DType::kFp32 && dense_) {
    std::memcpy(to, row + bytes_[0], bytes_.size() * sizeof *to);
  } else if (dtype_ == DType::kFp32) {
    over(row, bytes_, [to](std::size_t e, const std::uint8_t* at) { to[e] = fetch<float>(at); });
  } else if (dtype_ == DType::kBf16) {
    over(row, bytes_, [to](std::size_t e, const std::uint8_t* at) { to[e] = from_bf16(at); });
  } else {
    over(row, bytes_, [this, to](std::size_t e, const std::uint8_t* at) {
      to[e] = static_cast<float>(decode(dtype_, at));
    });
  }
}

void Memory::View::scatter(std::int64_t partition, const float* from) const {
  std::uint8_t* row = first_ + partition * row_;
  if (dtype_ == DType::kFp32 && dense_) {
    std::memcpy(row + bytes_[0], from, bytes_.size() * sizeof *from);
  } else if (dtype_ == DType::kFp32) {
    over(row, bytes_, [from](std::size_t e, std::uint8_t* at) { put(at, from[e]); });
  } else if (dtype_ == DType::kBf16) {
    over(row, bytes_, [from](std::size_t e, std::uint8_t* at) { put(at, to_bf16(from[e])); });
  } else {
    over(row, bytes_, [this, from](std::size_t e, std::uint8_t* at) {
      encode(dtype_, static_cast<double>(from[e]), at);
    });
  }
}

void Memory::View::copy_out(std::int64_t partition, std::uint8_t* to) const {
  std::uint8_t* row = first_ + partition * row_;
  if (dense_) {
    std::memcpy(to, row + bytes_[0], bytes_.size() * static_cast<std::size_t>(size_));
    return;
  }
  over(row, bytes_, [this, to](std::size_t e, const std::uint8_t* at) {
    std::memcpy(to + e * static_cast<std::size_t>(size_), at, static_cast<std::size_t>(size_));
  });
}

void Memory::View::copy_in(std::int64_t partition, const std::uint8_t* from) const {
  std::uint8_t* row = first_ + partition * row_;
  if (dense_) {
    std::memcpy(row + bytes_[0], from, bytes_.size() * static_cast<std::size_t>(size_));
    return;
  }
  over(row, bytes_, [this, from](std::size_t e, std::uint8_t* at) {
    std::memcpy(at, from + e * static_cast<std::size_t>(size_), static_cast<std::size_t>(size_));
  });
}

}  // namespace trellis::sim::functional
