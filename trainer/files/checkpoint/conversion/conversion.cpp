#include "trainer/files/checkpoint/conversion/conversion.h"

#include "base/error.h"
#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/conversion/tensor_fill.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {

ConvertedTensors::ConvertedTensors(const TensorSource& source, const ConvertOptions& options)
    : source_(source), index_(index_of(source)) {
  Problems problems;
  for (TensorEntry entry : source.tensors()) {
    const bool is_weight = parse_state_key(entry.key).state.empty();
    if (!is_weight && options.weights_only) continue;
    if (is_weight && options.dtype && !is_convertible(entry.dtype, *options.dtype))
      problems.add(source.address(), entry.key + " is " + name(entry.dtype) +
                                         ", which cannot be written as " + name(*options.dtype));
    if (is_weight && options.dtype) entry.dtype = *options.dtype;
    entries_.push_back(std::move(entry));
  }
  problems.throw_if_any();
}

void ConvertedTensors::read(const TensorEntry& entry, const WriteBytes& take) const {
  const Box all{Shape(entry.shape.size(), 0), entry.shape};
  ShardedPart part{{}, all};
  part.tensor.key = entry.key;
  part.tensor.dtype = entry.dtype;
  part.tensor.local_shape = part.tensor.global_shape = entry.shape;
  part.tensor.global_offset = all.offset;
  TensorFill(source_, index_).write({.dtype = entry.dtype, .shape = entry.shape}, {part}, take);
}

ByteProgress::ByteProgress(const std::vector<TensorEntry>& entries, Progress progress)
    : ByteProgress(0, std::move(progress)) {
  for (const TensorEntry& entry : entries)
    of_ += elements_of(entry.shape) * element_bytes(entry.dtype);
}

}  // namespace trellis::checkpoint
