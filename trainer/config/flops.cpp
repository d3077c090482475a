// Parameters and FLOPs of a run.
#include <algorithm>

#include "trainer/config/parameter_count.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {
namespace {

/// Parameters that a token is multiplied with: no look-ups, only the experts it visits, and the
/// head even when its weight is the embedding's.
std::int64_t multiplied_parameters(const ModelSection& model) {
  const ParameterCounts counts = count_parameters(model);
  std::int64_t total = counts.final_norm + counts.head + counts.token_head;
  if (model.image) total += counts.embedding;  // patches are multiplied
  for (int layer = 0; layer < model.num_layers; ++layer) {
    total += counts.layer(model, layer) - (is_moe_layer(model, layer) ? counts.idle_experts : 0);
  }
  return total;
}

/// Keys that a token attends to, on average over the sequence: all of it in an encoder, else half
/// of it, or less with a window.
double keys_per_token(const ModelSection& model) {
  if (is_encoder(model)) return model.encoder_seq_length;
  const double sequence = model.encoder_seq_length;
  const double window =
      std::min<double>(sequence, model.sliding_window.value_or(model.encoder_seq_length));
  return window - window * window / (2 * sequence);
}

}  // namespace

std::int64_t RunConfig::num_parameters() const { return count_all(model); }

// 6 = 2 (multiply, add) × 3 (forward, gradient of the input, gradient of the weight); next to LoRA
// adapters the weight has no gradient. Attention: Q·Kᵀ and P·V take 2·2·(heads · head size) per
// key, token and layer in the forward direction, ×3 with backward.
double RunConfig::model_flops_per_step() const {
  const double tokens = static_cast<double>(tokens_per_step());
  const double width = model.head_dim > 0
                           ? static_cast<double>(model.num_attention_heads) * model.head_dim
                           : model.hidden_size;
  const double attention = 12.0 * model.num_layers * width * keys_per_token(model) * tokens;
  return (model.lora ? 4 : 6) * static_cast<double>(multiplied_parameters(model)) * tokens +
         attention;
}

}  // namespace trellis::trainer
