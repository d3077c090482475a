#include "trainer/utils/parameter_count.h"

namespace trellis::trainer {
namespace {

bool is_gated(Activation activation) {
  return activation == Activation::kSwiglu || activation == Activation::kGeglu || activation == Activation::kReglu;
}

struct Sizes {
  std::int64_t hidden, ffn, query, key_value, gates, tp;
};

/// Queries, keys and values are cut by heads, the output projection by its input; its bias is whole on each rank.
std::int64_t attention(const ModelSection& model, const Sizes& s) {
  const std::int64_t qkv = s.query + 2 * s.key_value;
  const std::int64_t biases = model.has_bias ? qkv / s.tp + s.hidden : 0;
  return s.hidden * qkv / s.tp + s.query * s.hidden / s.tp + biases;
}

std::int64_t mlp(const ModelSection& model, const Sizes& s) {
  const std::int64_t biases = model.has_bias ? s.gates * s.ffn / s.tp + s.hidden : 0;
  return (s.gates + 1) * s.hidden * s.ffn / s.tp + biases;
}

std::int64_t norm(const ModelSection& model, std::int64_t size) {
  return model.normalization == Normalization::kRmsNorm ? size : 2 * size;
}

/// Those of the residual stream are whole on each rank; Normformer's inside the MLP is cut with what it normalizes.
std::int64_t norms(const ModelSection& model, const Sizes& s) {
  const bool normformer = model.transformer_block_type == TransformerBlock::kNormformer;
  return 2 * norm(model, s.hidden) + (normformer ? norm(model, s.hidden) + norm(model, s.ffn / s.tp) : 0);
}

}  // namespace

bool is_moe_layer(const ModelSection& model, int index) {
  return model.moe && index % model.moe->frequency == model.moe->first_layer;
}

std::int64_t ParameterCounts::layer(const ModelSection& model, int index) const { return is_moe_layer(model, index) ? moe_layer : dense_layer; }

ParameterCounts count_parameters(const ModelSection& model, int tp, int kv_copies) {
  const std::int64_t head = model.head_dim > 0 ? model.head_dim : model.hidden_size / model.num_attention_heads;
  const Sizes s{model.hidden_size,
                model.ffn_hidden_size,
                model.num_attention_heads * head,
                model.num_kv_heads * head * kv_copies,
                is_gated(model.activation) ? 2 : 1,
                tp};
  ParameterCounts counts;
  counts.embedding = counts.head = std::int64_t{model.vocab_size} * s.hidden / tp;
  if (model.position_embedding == PositionEmbedding::kLearnedAbsolute) counts.positions = std::int64_t{model.max_position_embeddings} * s.hidden;
  counts.dense_layer = attention(model, s) + mlp(model, s) + norms(model, s);
  if (model.moe) {
    const std::int64_t experts = model.moe->num_experts, router = s.hidden * experts;
    counts.moe_layer = attention(model, s) + experts * mlp(model, s) + router + norms(model, s);
    counts.idle_experts = (experts - model.moe->top_k) * mlp(model, s);
  }
  if (model.transformer_block_type != TransformerBlock::kPostLn) counts.final_norm = norm(model, s.hidden);
  return counts;
}

std::int64_t count_all(const ModelSection& model) {
  const ParameterCounts counts = count_parameters(model);
  std::int64_t total = counts.embedding + counts.positions + counts.final_norm;
  for (int layer = 0; layer < model.num_layers; ++layer) total += counts.layer(model, layer);
  return model.share_embeddings_and_output_weights ? total : total + counts.head;
}

}  // namespace trellis::trainer
