#include "trainer/optimizer/update_rule.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "base/error.h"
#include "trainer/config/optimizer_table.h"

namespace trellis::trainer {

std::int64_t unsharded_size(const Partition& partition) {
  std::int64_t size = 0;
  for (const PartitionBlock& block : partition.blocks) size += block.laid_out() / block.copies;
  return size;
}

at::Tensor row_weights_of(const Parameter& parameter, int tensor_parallel_size) {
  const std::vector<PartitionBlock>& blocks = parameter.partition.blocks;
  if (std::ranges::all_of(blocks, [](const PartitionBlock& block) { return block.copies == 1; }))
    return {};
  TORCH_INTERNAL_ASSERT(parameter.partition.dim == 0, parameter.name, ": only rows are replicated");
  std::vector<at::Tensor> weights;
  for (const PartitionBlock& block : blocks) {
    weights.push_back(
        at::full({block.laid_out() / tensor_parallel_size}, 1.0 / block.copies, at::kDouble));
  }
  return at::cat(weights);
}

}  // namespace trellis::trainer
