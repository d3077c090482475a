#include "trainer/files/checkpoint/adapters/merged_source.h"

#include <utility>

#include "trainer/files/checkpoint/containers/convert.h"

namespace trellis::checkpoint::adapters {

std::vector<double> read_wide(const TensorSource& source, const TensorEntry& tensor,
                              const Box& box) {
  const auto elements = static_cast<std::size_t>(box.elements());
  std::vector<std::byte> bytes(elements * static_cast<std::size_t>(element_bytes(tensor.dtype)));
  source.read(tensor, box, bytes);
  std::vector<double> values(elements);
  widen_elements(tensor.dtype, bytes, values);
  return values;
}

MergedSource::MergedSource(const TensorSource& source, double scale)
    : source_(source), scale_(scale) {
  for (AdapterSlice& slice : adapters_of(source)) {
    const std::string weight = slice.module + ".weight";
    by_weight_.emplace(weight, std::move(slice));
  }
  for (const TensorEntry& entry : source.tensors()) {
    if (!is_adapter_key(entry.key)) tensors_.push_back(entry);
  }
}

void MergedSource::read(const TensorEntry& tensor, const Box& box,
                        std::span<std::byte> into) const {
  const auto found = by_weight_.find(tensor.key);
  if (found == by_weight_.end() || box.elements() == 0) return source_.read(tensor, box, into);
  std::vector<double> values = read_wide(source_, tensor, box);
  const std::vector<double> added = product(found->second, box);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += scale_ * added[i];
  convert_elements(DType::kFloat64, std::as_bytes(std::span(values)), tensor.dtype, into);
}

std::vector<double> MergedSource::product(const AdapterSlice& slice, const Box& box) const {
  const std::int64_t rank = slice.rank(), rows = box.shape[0], columns = box.shape[1];
  // left [rows, rank] · right: of A's columns [rank, columns], or of B's rows [columns, rank].
  const TensorEntry &left = slice.embedding ? slice.a : slice.b,
                    &right = slice.embedding ? slice.b : slice.a;
  const std::int64_t first = box.offset[0] + (slice.embedding ? 0 : slice.first_row);
  const auto l = read_wide(source_, left, {{first, 0}, {rows, rank}});
  const auto r = read_wide(source_, right,
                           slice.embedding ? Box{{box.offset[1], 0}, {columns, rank}}
                                           : Box{{0, box.offset[1]}, {rank, columns}});
  std::vector<double> result(static_cast<std::size_t>(rows * columns), 0.0);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t row = 0; row < rows; ++row) {
    double* out = &result[at(row * columns)];
    for (std::int64_t k = 0; k < rank; ++k) {
      const double factor = l[at(row * rank + k)];
      const double* from = slice.embedding ? &r[at(k)] : &r[at(k * columns)];
      const std::int64_t step = slice.embedding ? rank : 1;
      for (std::int64_t column = 0; column < columns; ++column)
        out[column] += factor * from[column * step];
    }
  }
  return result;
}

}  // namespace trellis::checkpoint::adapters
