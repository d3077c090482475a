#include "trainer/config/parameter_count.h"

#include <string>

#include "trainer/config/lora_targets.h"

namespace trellis::trainer {
namespace {

struct Sizes {
  std::int64_t hidden, ffn, head, query, key_value, gates, tp;
};

/// Parameters of a module's adapter on one rank. A is whole next to a layer that is sharded by its
/// outputs, B next to one that is sharded by its inputs. See parallel_layers/lora.h.
std::int64_t adapter(const ModelSection& model, const Sizes& s, const std::string& name) {
  const auto columns = [&](std::int64_t outputs) { return s.hidden + outputs / s.tp; };
  const auto rows = [&](std::int64_t inputs) { return inputs / s.tp + s.hidden; };
  if (name == "embed_tokens" || name == "word_embeddings") return rows(model.vocab_size);
  if (name == "lm_head" || name == "output_layer") return columns(model.vocab_size);
  if (name == "o_proj" || name == "dense") return rows(s.query);
  if (name == "down_proj" || name == "dense_4h_to_h") return rows(s.ffn);
  if (name == "q_proj" || name == "query") return columns(s.query);
  if (name == "k_proj" || name == "v_proj") return columns(s.key_value);
  if (name == "key_value") return columns(2 * s.key_value);
  if (name == "qkv_proj" || name == "query_key_value") return columns(s.query + 2 * s.key_value);
  return columns(model.fuse_gate_up ? s.gates * s.ffn : s.ffn);
}

void count_adapters(const ModelSection& model, const Sizes& s, ParameterCounts& counts) {
  counts.adapters.resize(static_cast<std::size_t>(model.num_layers));
  for (const NamedModule& module : modules_of(model)) {
    if (!module.linear || !model.lora->targets_module(module.path, module.alias)) continue;
    const std::string name = module.path.substr(module.path.rfind('.') + 1);
    Sizes of_module = s;
    if (module.path.find(".shared_experts.") != std::string::npos)
      of_module.ffn *= model.moe->num_shared_experts;
    const std::int64_t count = model.lora->rank * adapter(model, of_module, name);
    if (module.layer >= 0)
      counts.adapters[static_cast<std::size_t>(module.layer)] += count;
    else
      (name == "lm_head" || name == "output_layer" ? counts.head : counts.embedding) += count;
  }
}

/// Queries, keys and values are cut by heads, the output projection by its input; its bias is whole
/// on each rank.
std::int64_t attention(const ModelSection& model, const Sizes& s) {
  const std::int64_t qkv = s.query + 2 * s.key_value;
  const std::int64_t biases =
      (has_qkv_bias(model) ? qkv / s.tp : 0) + (model.has_bias ? s.hidden : 0);
  return s.hidden * qkv / s.tp + s.query * s.hidden / s.tp + biases;
}

std::int64_t mlp(const ModelSection& model, const Sizes& s) {
  const std::int64_t biases = model.has_bias ? s.gates * s.ffn / s.tp + s.hidden : 0;
  return (s.gates + 1) * s.hidden * s.ffn / s.tp + biases;
}

std::int64_t norm(const ModelSection& model, std::int64_t size) {
  const bool has_bias = model.normalization != Normalization::kRmsNorm && model.layernorm_bias;
  return has_bias ? 2 * size : size;
}

/// Those of the residual stream and of heads are whole on each rank; those across heads, and
/// Normformer's inside the MLP, are cut with what they normalize.
std::int64_t norms(const ModelSection& model, const Sizes& s) {
  const bool normformer = model.transformer_block_type == TransformerBlock::kNormformer;
  const std::int64_t across = (norm(model, s.query) + norm(model, s.key_value)) / s.tp;
  const std::int64_t of_heads = !model.qk_layernorm               ? 0
                                : model.qk_layernorm_across_heads ? across
                                                                  : 2 * norm(model, s.head);
  return 2 * norm(model, s.hidden) + of_heads +
         (normformer ? norm(model, s.hidden) + norm(model, s.ffn / s.tp) : 0);
}

/// models/bert and models/vit.
void count_encoder(const ModelSection& model, const Sizes& s, ParameterCounts& counts) {
  if (model.architecture == "bert") {
    counts.positions += model.type_vocab_size * s.hidden + norm(model, s.hidden);
    counts.token_head = s.hidden * s.hidden + s.hidden + norm(model, s.hidden);
    counts.sample_head = s.hidden * s.hidden + s.hidden + 2 * s.hidden + 2 + model.vocab_size;
    return;
  }
  counts.embedding = model.image->values_per_patch() * s.hidden + s.hidden;
  counts.positions += s.hidden;  // the token of the class
  counts.head = 0;
  counts.sample_head = model.image->labels * (s.hidden + 1);
}

}  // namespace

std::int64_t ParameterCounts::layer(const ModelSection& model, int index) const {
  const std::int64_t adapter = adapters.empty() ? 0 : adapters.at(static_cast<std::size_t>(index));
  return (is_moe_layer(model, index) ? moe_layer : dense_layer) + adapter;
}

ParameterCounts count_parameters(const ModelSection& model, int tp, int kv_copies, int ep) {
  const std::int64_t head =
      model.head_dim > 0 ? model.head_dim : model.hidden_size / model.num_attention_heads;
  const Sizes s{model.hidden_size,
                model.ffn_hidden_size,
                head,
                model.num_attention_heads * head,
                model.num_kv_heads * head * kv_copies,
                is_gated(model.activation) ? 2 : 1,
                tp};
  ParameterCounts counts;
  counts.embedding = counts.head = std::int64_t{model.vocab_size} * s.hidden / tp;
  if (model.position_embedding == PositionEmbedding::kLearnedAbsolute)
    counts.positions = std::int64_t{model.max_position_embeddings} * s.hidden;
  counts.dense_layer = attention(model, s) + mlp(model, s) + norms(model, s);
  if (model.moe) {
    const std::int64_t experts = model.moe->num_experts, router = s.hidden * experts;
    const std::int64_t shared = model.moe->num_shared_experts * mlp(model, s);
    counts.moe_layer =
        attention(model, s) + experts / ep * mlp(model, s) + shared + router + norms(model, s);
    counts.idle_experts = (experts - model.moe->top_k) * mlp(model, s);
  }
  if (model.transformer_block_type != TransformerBlock::kPostLn)
    counts.final_norm = norm(model, s.hidden);
  if (model.lora && !is_encoder(model)) count_adapters(model, s, counts);
  if (is_encoder(model)) count_encoder(model, s, counts);
  return counts;
}

std::int64_t count_all(const ModelSection& model) {
  const ParameterCounts counts = count_parameters(model);
  std::int64_t total = counts.embedding + counts.positions + counts.final_norm + counts.token_head +
                       counts.sample_head;
  for (int layer = 0; layer < model.num_layers; ++layer) total += counts.layer(model, layer);
  return model.share_embeddings_and_output_weights ? total : total + counts.head;
}

}  // namespace trellis::trainer
