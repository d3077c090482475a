#include "trainer/files/checkpoint/formats/hugging_face/box_copy.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace trellis::checkpoint::hugging_face {
namespace {

/// The axes of a box that are longer than 1, and the elements between neighbours along each.
struct Walk {
  std::int64_t first = 0;  ///< element
  Shape counts, steps;
};

Walk walk_of(const Shape& shape, const Box& box) {
  Walk walk;
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; step *= shape[axis]) {
    walk.first += box.offset[axis] * step;
    if (box.shape[axis] == 1) continue;
    walk.counts.push_back(box.shape[axis]);
    walk.steps.push_back(step);
  }
  std::reverse(walk.counts.begin(), walk.counts.end());
  std::reverse(walk.steps.begin(), walk.steps.end());
  return walk;
}

/// A vector, or a matrix with one row, stays as it is.
void transpose(Walk& walk) {
  if (walk.counts.size() < 2) return;
  std::iter_swap(walk.counts.end() - 1, walk.counts.end() - 2);
  std::iter_swap(walk.steps.end() - 1, walk.steps.end() - 2);
}

template <std::size_t Width>
void copy_elements(const std::byte* from, const Walk& source, std::byte* to, const Walk& target,
                   std::size_t axis) {
  const std::int64_t count = source.counts[axis];
  const std::int64_t from_step = source.steps[axis] * static_cast<std::int64_t>(Width);
  const std::int64_t to_step = target.steps[axis] * static_cast<std::int64_t>(Width);
  if (axis + 1 < source.counts.size()) {
    for (std::int64_t i = 0; i < count; ++i)
      copy_elements<Width>(from + i * from_step, source, to + i * to_step, target, axis + 1);
  } else if (source.steps[axis] == 1 && target.steps[axis] == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * Width);
  } else {
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * to_step, from + i * from_step, Width);
  }
}

}  // namespace

void copy_box(ShapedBytes<const std::byte> from, const Box& from_box, ShapedBytes<std::byte> to,
              const Box& to_box, std::int64_t element_bytes, bool transposed) {
  if (to_box.elements() == 0) return;
  Walk source = walk_of(from.shape, from_box), target = walk_of(to.shape, to_box);
  if (transposed) transpose(source);
  TRELLIS_CHECK(source.counts == target.counts, "the boxes of a copy differ");
  if (source.counts.empty()) {
    source.counts = {1};
    source.steps = target.steps = {1};
  }
  const std::byte* begin = from.bytes.data() + source.first * element_bytes;
  std::byte* into = to.bytes.data() + target.first * element_bytes;
  switch (element_bytes) {
    case 1: return copy_elements<1>(begin, source, into, target, 0);
    case 2: return copy_elements<2>(begin, source, into, target, 0);
    case 4: return copy_elements<4>(begin, source, into, target, 0);
    case 8: return copy_elements<8>(begin, source, into, target, 0);
    default: return copy_elements<16>(begin, source, into, target, 0);
  }
}

}  // namespace trellis::checkpoint::hugging_face
