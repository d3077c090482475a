#include "trainer/files/checkpoint/conversion/converted_source.h"

#include <algorithm>

#include "trainer/files/checkpoint/containers/convert.h"

namespace trellis::checkpoint {

ConvertedSource::ConvertedSource(const TensorSource& source, const std::vector<Tensor>& tensors)
    : source_(source) {
  for (const Tensor& tensor : tensors) {
    from_[tensor.as.key] = tensor.from;
    entries_.push_back(tensor.as);
  }
  std::ranges::sort(entries_, {}, &TensorEntry::key);
}

void ConvertedSource::read(const TensorEntry& tensor, const Box& box,
                           std::span<std::byte> into) const {
  const TensorEntry& from = from_.at(tensor.key);
  if (from.dtype == tensor.dtype) return source_.read(from, box, into);
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(box.elements() * element_bytes(from.dtype)));
  source_.read(from, box, bytes);
  convert_elements(from.dtype, bytes, tensor.dtype, into);
}

}  // namespace trellis::checkpoint
