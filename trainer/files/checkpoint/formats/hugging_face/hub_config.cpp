#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/json/json_text.h"
#include "trainer/config/families/model_family.h"
#include "trainer/config/names.h"

namespace trellis::checkpoint::hugging_face {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kGpt2 = "gpt2";  // of GPTModel, whose config.json has its own names
/// No model has more; products of two of them fit into 64 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 28;

class Fields {
 public:
  Fields(const json& object, const std::string& where, Problems& problems)
      : object_(object), where_(where), problems_(problems) {}

  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) {
      if (!otherwise) problem(key, "this key is required and missing");
      return otherwise.value_or(1);
    }
    if (found->is_number_integer() && *found >= 1 && *found <= kMostSize)
      return found->get<std::int64_t>();
    problem(key, "expected an integer from 1 to " + std::to_string(kMostSize) + ", got " +
                     found->dump());
    return otherwise.value_or(1);
  }
  bool boolean(const char* key, bool otherwise) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) {
      problem(key, "expected true or false, got " + found->dump());
      return otherwise;
    }
    return found->get<bool>();
  }
  void problem(const char* key, const std::string& text) {
    problems_.add(where_ + ": " + key, terminal_line(text));
  }

 private:
  const json& object_;
  const std::string& where_;
  Problems& problems_;
};

std::string model_type_of(const json& object) {
  const auto found = object.find("model_type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void read_gpt2(Fields& fields, HubConfig& config) {
  config.layers = fields.size("n_layer");
  config.hidden = fields.size("n_embd");
  config.heads = config.kv_heads = fields.size("n_head");
  config.ffn = fields.size("n_inner", 4 * config.hidden);
  config.positions = fields.size("n_positions");
  config.head_dim = std::max<std::int64_t>(1, config.hidden / config.heads);
  if (config.hidden % config.heads != 0)
    fields.problem("n_head", "must divide n_embd " + std::to_string(config.hidden) + ", got " +
                                 std::to_string(config.heads));
  config.tied_embeddings = fields.boolean("tie_word_embeddings", true);
}

void read_llama(Fields& fields, HubConfig& config) {
  config.layers = fields.size("num_hidden_layers");
  config.hidden = fields.size("hidden_size");
  config.ffn = fields.size("intermediate_size");
  config.heads = fields.size("num_attention_heads");
  config.kv_heads = fields.size("num_key_value_heads", config.heads);
  const trainer::ModelFamily& family = trainer::family_of_type(config.model_type);
  config.head_dim =
      fields.size("head_dim", family.defaults.head_dim > 0
                                  ? family.defaults.head_dim
                                  : std::max<std::int64_t>(1, config.hidden / config.heads));
  if (config.heads % config.kv_heads != 0)
    fields.problem("num_key_value_heads", "must divide num_attention_heads " +
                                              std::to_string(config.heads) + ", got " +
                                              std::to_string(config.kv_heads));
  if (family.experts) config.experts = fields.size("num_local_experts", 8);
  config.tied_embeddings = fields.boolean("tie_word_embeddings", false);
}

/// Checks for settings that no family of the hub can express.
void check_gpt2(const trainer::ModelSection& model, Problems& problems) {
  const auto require = [&](bool holds, const char* key, const char* expected) {
    if (!holds)
      problems.add(std::string("model.") + key,
                   std::string("no family of Hugging Face has it; gpt2 expects ") + expected);
  };
  require(model.normalization == trainer::Normalization::kLayerNorm, "normalization", "layernorm");
  require(model.activation == trainer::Activation::kGelu ||
              model.activation == trainer::Activation::kOpenAiGelu,
          "activation", "gelu or openai-gelu");
  require(model.transformer_block_type == trainer::TransformerBlock::kPreLn,
          "transformer_block_type", "pre_ln");
  require(model.position_embedding == trainer::PositionEmbedding::kLearnedAbsolute,
          "position_embedding_type", "learned_absolute");
  require(model.has_bias, "has_bias", "true");
  require(model.num_kv_heads == model.num_attention_heads, "num_kv_heads", "num_attention_heads");
  require(model.head_dim == 0 || model.head_dim * model.num_attention_heads == model.hidden_size,
          "kv_channels", "hidden_size / num_attention_heads");
  require(!model.qk_layernorm, "qk_layernorm", "false");
  require(model.layernorm_bias, "layernorm_bias", "true");
  require(!model.clip_qkv, "clip_qkv", "none");
}

ordered_json gpt2_config(const trainer::ModelSection& model, std::int64_t vocabulary) {
  Problems problems;
  check_gpt2(model, problems);
  problems.throw_if_any();
  return {{"activation_function",
           model.activation == trainer::Activation::kOpenAiGelu ? "gelu_new" : "gelu"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", model.attention_dropout},
          {"embd_pdrop", model.hidden_dropout},
          {"initializer_range", model.init_method_std},
          {"layer_norm_epsilon", model.layernorm_epsilon},
          {"model_type", "gpt2"},
          {"n_embd", model.hidden_size},
          {"n_head", model.num_attention_heads},
          {"n_inner", model.ffn_hidden_size},
          {"n_layer", model.num_layers},
          {"n_positions", model.max_position_embeddings},
          {"resid_pdrop", model.hidden_dropout},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", model.share_embeddings_and_output_weights},
          {"vocab_size", vocabulary}};
}

ordered_json rope_parameters(const trainer::ModelSection& model) {
  const trainer::RopeScaling& scaling = model.rope_scaling;
  ordered_json rope{{"rope_theta", model.rope_theta}, {"rope_type", scaling.type}};
  if (scaling.type == "default") return rope;
  rope["factor"] = scaling.factor;
  if (scaling.original_max_position_embeddings > 0)
    rope["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  if (scaling.type == "llama3") {
    rope["low_freq_factor"] = scaling.low_freq_factor;
    rope["high_freq_factor"] = scaling.high_freq_factor;
  }
  return rope;
}

/// Checks for settings that a Megatron model, also a mixture of experts, may have and that the
/// families here do not.
void check_llama(const trainer::ModelSection& model) {
  Problems problems;
  const auto require = [&](bool holds, const char* key, const char* expected) {
    if (!holds)
      problems.add(std::string("model.") + key,
                   std::string("no family of Hugging Face here has it; llama expects ") + expected);
  };
  require(model.rotary_percentage == 1, "rotary_percentage", "1");
  require(model.normalization == trainer::Normalization::kRmsNorm, "normalization", "rmsnorm");
  require(model.activation == trainer::Activation::kSwiglu, "activation", "swiglu");
  require(!model.clip_qkv, "clip_qkv", "none");
  problems.throw_if_any();
}

ordered_json llama_config(const trainer::ModelSection& model, std::int64_t vocabulary) {
  check_llama(model);
  const bool moe = model.moe.has_value(), window = model.sliding_window.has_value();
  const trainer::ModelFamily& family = trainer::hub_family(model);
  ordered_json config{{"architectures", {family.hub_class}},
                      {"attention_bias", false},
                      {"attention_dropout", model.attention_dropout},
                      {"head_dim", model.head_dim},
                      {"hidden_act", "silu"},
                      {"hidden_size", model.hidden_size},
                      {"initializer_range", model.init_method_std},
                      {"intermediate_size", model.ffn_hidden_size},
                      {"max_position_embeddings", model.max_position_embeddings},
                      {"mlp_bias", false},
                      {"model_type", family.type},
                      {"num_attention_heads", model.num_attention_heads},
                      {"num_hidden_layers", model.num_layers},
                      {"num_key_value_heads", model.num_kv_heads},
                      {"rms_norm_eps", model.layernorm_epsilon},
                      // Twice: transformers 5 reads the second, all before it the first.
                      {"rope_theta", model.rope_theta},
                      {"rope_parameters", rope_parameters(model)},
                      {"tie_word_embeddings", model.share_embeddings_and_output_weights},
                      {"use_cache", true},
                      {"vocab_size", vocabulary}};
  if (model.rope_scaling.type != "default") {
    config["rope_scaling"] = rope_parameters(model);
    config["rope_scaling"].erase("rope_theta");
  }
  if (family.structure.qkv_bias) config.erase("attention_bias");
  if (family.off != nullptr) config[family.off] = false;
  if (moe || window)
    config["sliding_window"] = window ? ordered_json(*model.sliding_window) : ordered_json();
  if (moe) {
    config["num_local_experts"] = model.moe->num_experts;
    config["num_experts_per_tok"] = model.moe->top_k;
    config["router_aux_loss_coef"] = model.moe->router_aux_loss_coef;
    config["output_router_logits"] = model.moe->output_router_logits;
  }
  return config;
}

}  // namespace

HubConfig read_hub_config(const std::string& text, const std::string& where) {
  const json object = parse_json(text, where, "a Hugging Face config.json");
  if (!object.is_object()) throw ConfigError(where + ": expected a JSON object");
  HubConfig config;
  config.model_type = model_type_of(object);
  Problems problems;
  Fields fields(object, where, problems);
  const trainer::ModelFamily* family = trainer::find_family(config.model_type);
  if (config.model_type == kGpt2) {
    read_gpt2(fields, config);
  } else if (family != nullptr && is_on_hub(*family)) {
    read_llama(fields, config);
  } else {
    std::vector<std::string> known = trainer::family_types(&trainer::is_on_hub);
    known.emplace_back(kGpt2);
    throw ConfigError(
        where + ": model_type: expected " + trainer::join_names(known) + ", got " +
        (config.model_type.empty() ? "none" : "\"" + terminal_line(config.model_type) + "\"") +
        ": this version has no names of its weights");
  }
  config.vocabulary = fields.size("vocab_size");
  problems.throw_if_any();
  return config;
}

std::string hub_config_text(const trainer::ModelSection& model, std::int64_t vocabulary,
                            DType dtype) {
  ordered_json config;
  if (model.architecture == "gpt") {
    config = gpt2_config(model, vocabulary);
  } else if (model.architecture == "llama" || model.architecture == "mixtral") {
    config = llama_config(model, vocabulary);
  } else {
    throw ConfigError("model: architecture " + model.architecture +
                      " has no mapping to Hugging Face in this version; expected llama, mixtral "
                      "or gpt");
  }
  config["dtype"] = config["torch_dtype"] = name(dtype);
  return json(config).dump(2) + "\n";
}

std::string with_token_ids(const std::string& config_text, const TokenIds& ids) {
  json config = json::parse(config_text);
  // Null where there is none: without the key transformers takes 1 and 2 for Llama's.
  const auto set = [&](const char* key, const std::optional<std::int64_t>& id) {
    config[key] = id ? json(*id) : json();
  };
  set("bos_token_id", ids.bos);
  set("pad_token_id", ids.pad);
  config["eos_token_id"] = ids.eos.empty()       ? json()
                           : ids.eos.size() == 1 ? json(ids.eos.front())
                                                 : json(ids.eos);
  return config.dump(2) + "\n";
}

std::string generation_config_text(const std::string& config_text) {
  const json config = json::parse(config_text, nullptr, /*allow_exceptions=*/false);
  json generation{{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.is_object() && config.contains(key) && !config[key].is_null())
      generation[key] = config[key];
  }
  return generation.dump(2) + "\n";
}

}  // namespace trellis::checkpoint::hugging_face
