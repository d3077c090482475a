#include "trainer/files/checkpoint/formats/hugging_face/hub_model.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_text.h"
#include "trainer/config/families/model_family.h"
#include "trainer/config/sections/hf_model_config.h"

namespace trellis::checkpoint::hugging_face {
namespace {

using nlohmann::json;
using trainer::ModelSection;

void take_sizes(const HubConfig& config, ModelSection& model) {
  model.num_layers = static_cast<int>(config.layers);
  model.hidden_size = static_cast<int>(config.hidden);
  model.ffn_hidden_size = static_cast<int>(config.ffn);
  model.num_attention_heads = static_cast<int>(config.heads);
  model.num_kv_heads = static_cast<int>(config.kv_heads);
  model.head_dim = static_cast<int>(config.head_dim);
  model.vocab_size = static_cast<int>(config.vocabulary);
  model.share_embeddings_and_output_weights = config.tied_embeddings;
}

ModelSection llama_model(const HubConfig& config, const json& object,
                         const trainer::HfModelConfig& said) {
  const trainer::ModelFamily& family = trainer::family_of_type(config.model_type);
  const trainer::FamilyDefaults& otherwise = family.defaults;
  ModelSection model;
  set_structure(family.structure, model);
  model.layernorm_epsilon = said.rms_norm_eps.value_or(otherwise.rms_norm_eps);
  model.rope_theta = said.rope_theta.value_or(otherwise.rope_theta);
  model.rope_scaling = said.rope_scaling.value_or(model.rope_scaling);
  if (model.rope_scaling.original_max_position_embeddings == 0)
    model.rope_scaling.original_max_position_embeddings = said.max_position_embeddings.value_or(0);
  model.sliding_window = said.sliding_window;
  if (!object.contains("sliding_window") && otherwise.sliding_window > 0)
    model.sliding_window = otherwise.sliding_window;
  model.moe = said.moe;
  return model;
}

/// A property of GPT-2 that only one value of is computed here.
void require_value(const json& object, const char* key, bool value, const std::string& where,
                   Problems& problems) {
  if (object.contains(key) && object[key] != value)
    problems.add(where + ": " + key, "expected " + std::string(value ? "true" : "false") +
                                         ", got " + object[key].dump() +
                                         ": no model here computes so");
}

ModelSection gpt2_model(const HubConfig& config, const json& object, const std::string& where) {
  ModelSection model;
  model.architecture = "gpt";
  model.normalization = trainer::Normalization::kLayerNorm;
  model.position_embedding = trainer::PositionEmbedding::kLearnedAbsolute;
  model.has_bias = true;
  model.max_position_embeddings = static_cast<int>(config.positions);
  Problems problems;
  const std::string activation = object.value("activation_function", json("gelu_new")).dump();
  const bool is_tanh = activation == "\"gelu_new\"" || activation == "\"gelu_pytorch_tanh\"";
  if (!is_tanh && activation != "\"gelu\"")
    problems.add(where + ": activation_function", "expected gelu_new or gelu, got " + activation);
  model.activation = is_tanh ? trainer::Activation::kOpenAiGelu : trainer::Activation::kGelu;
  const auto epsilon = object.find("layer_norm_epsilon");
  if (epsilon != object.end() && !epsilon->is_number())
    problems.add(where + ": layer_norm_epsilon", "expected a number, got " + epsilon->dump());
  else
    model.layernorm_epsilon = epsilon == object.end() ? 1e-5 : epsilon->get<double>();
  require_value(object, "scale_attn_weights", true, where, problems);
  require_value(object, "scale_attn_by_inverse_layer_idx", false, where, problems);
  require_value(object, "add_cross_attention", false, where, problems);
  problems.throw_if_any();
  return model;
}

using Name = std::pair<const char*, const char*>;
constexpr std::array<Name, 18> kLlamaNames = {
    {{"model.num_layers", "num_hidden_layers"},
     {"model.ffn_hidden_size", "intermediate_size"},
     {"model.num_kv_heads", "num_key_value_heads"},
     {"model.kv_channels", "head_dim"},
     {"model.layernorm_epsilon", "rms_norm_eps"},
     {"model.activation", "hidden_act"},
     {"model.has_bias", "attention_bias"},
     {"model.qkv_bias", "model_type"},
     {"model.qk_layernorm_across_heads", "model_type"},
     {"model.transformer_block_type", "model_type"},
     {"model.share_embeddings_and_output_weights", "tie_word_embeddings"},
     {"model.sliding_window_size", "sliding_window"},
     {"model.qk_layernorm", "model_type"},
     {"model.normalization", "model_type"},
     {"model.position_embedding_type", "model_type"},
     {"model.moe.num_experts", "num_local_experts"},
     {"model.moe.top_k", "num_experts_per_tok"},
     {"model.moe.routing_algorithm", "model_type"}}};
constexpr std::array<Name, 13> kGpt2Names = {
    {{"model.num_layers", "n_layer"},
     {"model.hidden_size", "n_embd"},
     {"model.ffn_hidden_size", "n_inner"},
     {"model.num_attention_heads", "n_head"},
     {"model.num_kv_heads", "n_head"},
     {"model.kv_channels", "n_head"},
     {"model.layernorm_epsilon", "layer_norm_epsilon"},
     {"model.activation", "activation_function"},
     {"model.max_position_embeddings", "n_positions"},
     {"model.share_embeddings_and_output_weights", "tie_word_embeddings"},
     {"model.normalization", "model_type"},
     {"model.has_bias", "model_type"},
     {"model.position_embedding_type", "model_type"}}};

template <std::size_t count>
std::string name_in(const std::array<Name, count>& names, const std::string& property) {
  for (const auto& [here, there] : names) {
    if (property == here) return there;
  }
  return "";
}

}  // namespace

ModelSection hub_model(const HubConfig& config, const std::string& text, const std::string& where) {
  const json object = parse_json(text, where, "a Hugging Face config.json");
  ModelSection model;
  if (config.model_type == "gpt2") {
    model = gpt2_model(config, object, where);
  } else {
    std::string problems;
    const auto said = trainer::parse_hf_model_config(text, where, [&](const std::string& problem) {
      problems += (problems.empty() ? "" : "\n") + problem;
    });
    if (!problems.empty()) throw ConfigError(problems);
    model = llama_model(config, object, said);
  }
  take_sizes(config, model);
  return model;
}

std::string hub_name(const HubConfig& config, const std::string& property) {
  return config.model_type == "gpt2" ? name_in(kGpt2Names, property)
                                     : name_in(kLlamaNames, property);
}

}  // namespace trellis::checkpoint::hugging_face
