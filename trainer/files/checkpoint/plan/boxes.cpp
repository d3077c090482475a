#include "trainer/files/checkpoint/plan/boxes.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace trellis::checkpoint {
namespace {

/// Stretches shorter than this cost more as separate reads than the bytes between them.
constexpr std::int64_t kShortRead = 16 << 10;

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

std::int64_t place_of(const Shape& offset, const Shape& strides) {
  std::int64_t place = 0;
  for (std::size_t axis = 0; axis < offset.size(); ++axis) place += offset[axis] * strides[axis];
  return place;
}

/// The outermost axis of a stretch: all axes after it are whole in both tensors.
std::size_t run_axis(const BoxCopy& copy) {
  std::size_t axis = copy.shape.size() - 1;
  while (axis > 0 && copy.shape[axis] == copy.from_shape[axis] &&
         copy.shape[axis] == copy.into_shape[axis])
    --axis;
  return axis;
}

/// Runs that lie close to each other, read as one.
class JoinedReads {
 public:
  JoinedReads(std::int64_t width, const ReadBytes& read, std::span<std::byte> into)
      : width_(width), read_(read), into_(into) {}

  void add(std::int64_t from, std::int64_t into, std::int64_t count) {
    const Run run{from * width_, into * width_, count * width_};
    if (run.bytes >= kShortRead) {
      flush();
      read_(run.from, bytes_of(run));
      return;
    }
    if (!runs_.empty() && run.from + run.bytes - runs_.front().from > kMostReadBytes) flush();
    runs_.push_back(run);
  }
  void flush() {
    if (runs_.empty()) return;
    const std::int64_t begin = runs_.front().from, end = runs_.back().from + runs_.back().bytes;
    if (runs_.size() == 1) {
      read_(begin, bytes_of(runs_.front()));
    } else {
      buffer_.resize(static_cast<std::size_t>(end - begin));
      read_(begin, buffer_);
      for (const Run& run : runs_) {
        std::memcpy(into_.data() + run.into, buffer_.data() + (run.from - begin),
                    static_cast<std::size_t>(run.bytes));
      }
    }
    runs_.clear();
  }

 private:
  struct Run {
    std::int64_t from, into, bytes;
  };
  [[nodiscard]] std::span<std::byte> bytes_of(const Run& run) const {
    return into_.subspan(static_cast<std::size_t>(run.into), static_cast<std::size_t>(run.bytes));
  }

  std::int64_t width_;
  const ReadBytes& read_;
  std::span<std::byte> into_;
  std::vector<Run> runs_;
  std::vector<std::byte> buffer_;
};

}  // namespace

void for_each_run(
    const BoxCopy& copy,
    const std::function<void(std::int64_t from, std::int64_t into, std::int64_t count)>& visit) {
  if (copy.shape.empty()) return visit(0, 0, 1);
  if (elements_of(copy.shape) == 0) return;
  const Shape from_strides = strides_of(copy.from_shape),
              into_strides = strides_of(copy.into_shape);
  const std::size_t inner = run_axis(copy);
  const std::int64_t count = copy.shape[inner] * from_strides[inner];
  std::int64_t from = place_of(copy.from_offset, from_strides),
               into = place_of(copy.into_offset, into_strides);
  Shape index(inner, 0);
  while (true) {
    visit(from, into, count);
    std::size_t axis = inner;
    while (axis-- > 0) {
      from += from_strides[axis];
      into += into_strides[axis];
      if (++index[axis] < copy.shape[axis]) break;
      from -= index[axis] * from_strides[axis];
      into -= index[axis] * into_strides[axis];
      index[axis] = 0;
    }
    if (axis == static_cast<std::size_t>(-1)) return;
  }
}

void for_each_piece(const Shape& shape, std::int64_t most_elements,
                    const std::function<void(const Box& piece)>& visit) {
  if (shape.empty()) return visit({{}, {}});
  if (elements_of(shape) == 0) return;
  const Shape strides = strides_of(shape);
  std::size_t axis = 0;  // the outermost of which one index is small enough
  while (axis + 1 < shape.size() && strides[axis] > most_elements) ++axis;
  const std::int64_t step = std::max<std::int64_t>(1, most_elements / strides[axis]);
  Box piece{Shape(shape.size(), 0), shape};
  std::fill_n(piece.shape.begin(), axis, 1);
  const std::int64_t outer =
      elements_of(Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)));
  for (std::int64_t i = 0; i < outer; ++i) {
    std::int64_t rest = i;
    for (std::size_t before = axis; before-- > 0; rest /= shape[before])
      piece.offset[before] = rest % shape[before];
    for (std::int64_t first = 0; first < shape[axis]; first += step) {
      piece.offset[axis] = first;
      piece.shape[axis] = std::min(step, shape[axis] - first);
      visit(piece);
    }
  }
}

void read_box(const BoxCopy& copy, std::int64_t element_bytes, const ReadBytes& read,
              std::span<std::byte> into) {
  JoinedReads reads(element_bytes, read, into);
  for_each_run(copy, [&](std::int64_t from, std::int64_t place, std::int64_t count) {
    reads.add(from, place, count);
  });
  reads.flush();
}

}  // namespace trellis::checkpoint
