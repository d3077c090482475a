#include "trainer/parallel_layers/sequence_shard.h"

#include <ATen/ops/cat.h>

namespace trellis::trainer {

std::vector<RowRange> SequenceShard::rows(int of) const {
  const std::int64_t local = local_length();
  if (!balanced || size == 1) return {{of * local, local}};
  const std::int64_t half = local / 2;
  return {{of * half, half}, {(2 * size - 1 - of) * half, half}};
}

at::Tensor SequenceShard::take(const at::Tensor& whole, std::int64_t dim, int of) const {
  if (size == 1) return whole;
  std::vector<at::Tensor> parts;
  for (const RowRange& range : rows(of))
    parts.push_back(whole.narrow(dim, range.first, range.count));
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

}  // namespace trellis::trainer
