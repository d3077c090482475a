#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint::hugging_face {

/// Bytes in row-major order with the shape that they have.
template <typename Byte>
struct ShapedBytes {
  std::span<Byte> bytes;
  const Shape& shape;
};

/// Copies `from_box` of one tensor to `to_box` of another, whose elements have the same width. Axes
/// of length 1 of either box do not count; `transposed`: the last two of the others change places.
/// REQUIRES: the boxes lie in their tensors and have equal shapes in this sense.
void copy_box(ShapedBytes<const std::byte> from, const Box& from_box, ShapedBytes<std::byte> to,
              const Box& to_box, std::int64_t element_bytes, bool transposed);

}  // namespace trellis::checkpoint::hugging_face
