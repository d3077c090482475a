#include "trainer/modules/qkv.h"

#include <c10/util/StringUtil.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

std::vector<ColumnParallelLinear::Output> outputs_of(const AttentionShape& shape, int tp, const std::string& path) {
  if (shape.num_kv_heads % tp != 0) {
    throw ConfigError(c10::str(path, ": tensor_model_parallel_size must divide model.num_kv_heads: expected a divisor of ",
                               shape.num_kv_heads, ", got ", tp));
  }
  const std::int64_t kv_size = shape.num_kv_heads * shape.head_dim();
  return {{"q_proj", shape.num_heads * shape.head_dim()}, {"k_proj", kv_size}, {"v_proj", kv_size}};
}

}  // namespace

GQAQKVColumnParallelLinear::GQAQKVColumnParallelLinear(const ModuleContext& context, const std::string& path, const AttentionShape& shape,
                                                       double init_std)
    : projections_(context, path, shape.hidden_size, outputs_of(shape, context.tp().size, path), init_std), head_dim_(shape.head_dim()) {}

GQAQKVColumnParallelLinear::Output GQAQKVColumnParallelLinear::forward(const at::Tensor& input) const {
  const std::vector<at::Tensor> outputs = projections_.forward(input);
  const auto by_head = [this](const at::Tensor& projected) { return projected.unflatten(-1, {-1, head_dim_}); };
  return {by_head(outputs[0]), by_head(outputs[1]), by_head(outputs[2])};
}

}  // namespace trellis::trainer
