// Parameter and FLOP counts of a Llama-shaped decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU, untied head, no bias.
#include "trainer/config/run_config.h"

namespace trellis::trainer {
namespace {

/// Q and O are h×h; K and V are h×(kv heads · head dimension); gate, up and down are h×f; two norms of h.
std::int64_t layer_parameters(const ModelSection& model) {
  const std::int64_t h = model.hidden_size, f = model.ffn_hidden_size;
  const std::int64_t kv_size = h / model.num_attention_heads * model.num_kv_heads;
  return 2 * h * h + 2 * h * kv_size + 3 * h * f + 2 * h;
}

std::int64_t embedding_parameters(const ModelSection& model) {
  return std::int64_t{model.vocab_size} * model.hidden_size;
}

}  // namespace

std::int64_t RunConfig::num_parameters() const {
  const std::int64_t final_norm = model.hidden_size;
  return 2 * embedding_parameters(model) + model.num_layers * layer_parameters(model) + final_norm;
}

// 6 = 2 (multiply, add) × 3 (forward, gradient of the input, gradient of the weight). The embedding is a lookup, not a product.
// Attention: Q·Kᵀ and P·V take 2·2·h·s each per token and layer in the forward direction, ×3 with backward = 12·h·s; the causal mask needs half.
double RunConfig::model_flops_per_step() const {
  const double sequence = model.encoder_seq_length;
  const double tokens = data.global_batch_size * sequence;
  const auto multiplied = static_cast<double>(num_parameters() - embedding_parameters(model));
  const double attention = 12.0 * model.num_layers * model.hidden_size * sequence * tokens / 2;
  return 6 * multiplied * tokens + attention;
}

}  // namespace trellis::trainer
