#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

/// Boxes of row-major tensors as stretches of bytes.
namespace trellis::checkpoint {

/// A box that two tensors have in common.
struct BoxCopy {
  Shape from_shape, from_offset;
  Shape into_shape, into_offset;
  Shape shape;  ///< of the box
};

/// Each stretch that is consecutive in both tensors, in row-major order: where it begins in each
/// and how long it is, in elements.
void for_each_run(
    const BoxCopy& copy,
    const std::function<void(std::int64_t from, std::int64_t into, std::int64_t count)>& visit);

/// Cuts a tensor into boxes that follow each other in memory, of at most `most_elements` each.
void for_each_piece(const Shape& shape, std::int64_t most_elements,
                    const std::function<void(const Box& piece)>& visit);

/// Reads bytes of a tensor, the first one counted from its beginning.
using ReadBytes = std::function<void(std::int64_t first_byte, std::span<std::byte> into)>;

/// Fills the box of `into` (bytes of the whole tensor `copy.into_shape`) from a tensor that `read`
/// gives. Short stretches are read together: at most kMostReadBytes more are in memory.
void read_box(const BoxCopy& copy, std::int64_t element_bytes, const ReadBytes& read,
              std::span<std::byte> into);
inline constexpr std::int64_t kMostReadBytes = std::int64_t{4} << 20;

}  // namespace trellis::checkpoint
