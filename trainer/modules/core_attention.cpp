#include "trainer/modules/core_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

namespace trellis::trainer {
namespace {

/// [s, b, n, d] → [b, n, s, d]
at::Tensor heads_first(const at::Tensor& input) { return input.permute({1, 2, 0, 3}); }

/// [s, b, n_kv, d] → [b, n, s, d]: each head serves n / n_kv query heads.
at::Tensor expand_kv_heads(const at::Tensor& input, std::int64_t num_heads) {
  const at::Tensor heads = heads_first(input);
  const std::int64_t copies = num_heads / heads.size(1);
  if (copies == 1) return heads;
  return heads.unsqueeze(2).expand({-1, -1, copies, -1, -1}).flatten(1, 2);
}

}  // namespace

at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t num_heads = query.size(2);
  const at::Tensor context = at::scaled_dot_product_attention(heads_first(query), expand_kv_heads(key, num_heads),
                                                              expand_kv_heads(value, num_heads), {}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return context.permute({2, 0, 1, 3}).flatten(2);
}

}  // namespace trellis::trainer
