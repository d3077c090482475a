#include "trainer/files/checkpoint/formats/megatron/arguments.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/config/parameter_count.h"

namespace trellis::checkpoint::megatron {
namespace {

using trainer::Activation;
using trainer::ModelSection;
using trainer::Normalization;
using trainer::PositionEmbedding;

constexpr std::size_t kMostText = 80;

/// Reads arguments; one that is not there, or None, is none.
class Arguments {
 public:
  Arguments(const Value& args, std::string where) : args_(args), where_(std::move(where)) {}

  template <typename Read>
  auto checked(const char* name, Read read) const {
    try {
      return read();
    } catch (const ConfigError& error) {
      throw ConfigError(where_ + ": args." + name + ": " + error.what());
    }
  }

  [[nodiscard]] const Value* find(const char* name) const {
    const Value* value = args_.find(Value(name));
    return value == nullptr || value->is_none() ? nullptr : value;
  }
  [[nodiscard]] bool has(const char* name) const { return args_.find(Value(name)) != nullptr; }
  [[nodiscard]] bool is_true(const char* name) const {
    const Value* value = find(name);
    return value != nullptr && checked(name, [&] { return value->as_int() != 0; });
  }
  [[nodiscard]] std::optional<double> number(const char* name) const {
    const Value* value = find(name);
    if (value == nullptr) return std::nullopt;
    return checked(name, [&] { return value->as_double(); });
  }
  [[nodiscard]] std::optional<int> integer(const char* name) const {
    const Value* value = find(name);
    if (value == nullptr) return std::nullopt;
    return checked(name, [&] { return static_cast<int>(value->as_int()); });
  }
  [[nodiscard]] std::string text(const char* name) const {
    const Value* value = find(name);
    if (value == nullptr) return "";
    return checked(name, [&] { return value->as_string(); });
  }

 private:
  const Value& args_;
  std::string where_;
};

void take_sizes(const Arguments& args, ModelSection& model) {
  const auto take = [&](const char* name, int& size) { size = args.integer(name).value_or(size); };
  take("num_layers", model.num_layers);
  take("hidden_size", model.hidden_size);
  take("ffn_hidden_size", model.ffn_hidden_size);
  take("num_attention_heads", model.num_attention_heads);
  if (args.has("num_attention_heads")) model.num_kv_heads = model.num_attention_heads;
  if (args.is_true("group_query_attention")) take("num_query_groups", model.num_kv_heads);
  take("kv_channels", model.head_dim);
  take("padded_vocab_size", model.vocab_size);
}

void take_norms(const Arguments& args, SavedModel& saved) {
  ModelSection& model = saved.model;
  for (const char* name : {"layernorm_epsilon", "norm_epsilon"})
    model.layernorm_epsilon = args.number(name).value_or(model.layernorm_epsilon);
  const bool is_rms = args.has("normalization") ? args.text("normalization") == "RMSNorm"
                                                : model.normalization == Normalization::kRmsNorm;
  if (args.has("normalization"))
    model.normalization = is_rms ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  if (args.is_true("apply_layernorm_1p")) {
    if (is_rms)
      saved.others.push_back({"args.apply_layernorm_1p", "True", "False"});
    else
      model.normalization = Normalization::kLayerNorm1P;
  }
  if (args.has("qk_layernorm")) model.qk_layernorm = args.is_true("qk_layernorm");
  // Megatron-core has neither.
  model.qk_layernorm_across_heads = false;
  if (model.transformer_block_type == trainer::TransformerBlock::kReorderedNorm)
    model.transformer_block_type = trainer::TransformerBlock::kPreLn;
}

/// Which of the two forms of GELU is fused or not: --openai-gelu alone chooses one.
void take_mlp(const Arguments& args, ModelSection& model) {
  if (args.has("add_bias_linear")) model.has_bias = args.is_true("add_bias_linear");
  if (args.has("add_qkv_bias")) model.qkv_bias = args.is_true("add_qkv_bias");
  model.qkv_bias = model.qkv_bias && !model.has_bias;
  if (!args.has("swiglu")) return;
  const bool is_gelu =
      model.activation == Activation::kGelu || model.activation == Activation::kOpenAiGelu;
  if (args.is_true("swiglu"))
    model.activation = Activation::kSwiglu;
  else if (args.is_true("openai_gelu"))
    model.activation = Activation::kOpenAiGelu;
  else if (!is_gelu)
    model.activation = Activation::kGelu;
}

void take_scaling(const Arguments& args, ModelSection& model) {
  if (!args.has("use_rope_scaling") && !args.has("rotary_seq_len_interpolation_factor")) return;
  model.rope_scaling = {};
  if (args.is_true("use_rope_scaling")) {
    // Scaling of Llama 3.1: Megatron-core's constants, except for the factor.
    model.rope_scaling = {"llama3", args.number("rope_scaling_factor").value_or(8.0), 1, 4, 8192};
  } else if (const auto factor = args.number("rotary_seq_len_interpolation_factor")) {
    model.rope_scaling = {.type = "linear", .factor = *factor};
  }
}

void take_positions(const Arguments& args, SavedModel& saved) {
  ModelSection& model = saved.model;
  std::string type = args.text("position_embedding_type");
  if (args.is_true("use_rotary_position_embeddings")) type = "rope";
  if (type == "rope") {
    model.position_embedding = PositionEmbedding::kRope;
  } else if (type == "learned_absolute") {
    model.position_embedding = PositionEmbedding::kLearnedAbsolute;
    model.max_position_embeddings =
        args.integer("max_position_embeddings").value_or(model.max_position_embeddings);
  } else if (!type.empty()) {
    saved.others.push_back(
        {"args.position_embedding_type", terminal_line(type), "rope or learned_absolute"});
  }
  model.rope_theta = args.number("rotary_base").value_or(model.rope_theta);
  model.rotary_percentage = args.number("rotary_percent").value_or(model.rotary_percentage);
  take_scaling(args, model);
}

/// (left, right): keys before the query, and after it, which is causal; −1: all of them.
void take_window(const Arguments& args, SavedModel& saved) {
  if (!args.has("window_size")) return;
  saved.model.sliding_window.reset();
  const Value* value = args.find("window_size");
  if (value == nullptr) return;
  const auto sides = args.checked("window_size", [&] { return value->as_ints(); });
  if (!sides.empty() && sides.front() >= 0)
    saved.model.sliding_window = static_cast<int>(sides.front()) + 1;
}

/// Which layers are mixtures: each n-th from the first one on, or a list of zeros and ones.
void take_mixtures(const Arguments& args, SavedModel& saved) {
  const Value* value = args.find("moe_layer_freq");
  if (value == nullptr) return;
  ModelSection& model = saved.model;
  model.moe->first_layer = 0;
  if (!value->is(Value::Kind::kList)) {
    model.moe->frequency = std::max(1, args.integer("moe_layer_freq").value_or(1));
    return;
  }
  const auto pattern = args.checked("moe_layer_freq", [&] { return value->as_ints(); });
  const auto fits = [&] {
    for (std::size_t layer = 0; layer < pattern.size(); ++layer) {
      const bool is_mixed = trainer::is_moe_layer(model, static_cast<int>(layer));
      if (is_mixed != (pattern[layer] != 0)) return false;
    }
    return true;
  };
  for (model.moe->frequency = 1; model.moe->frequency <= std::ssize(pattern);
       ++model.moe->frequency) {
    for (int& first = model.moe->first_layer = 0; first < model.moe->frequency; ++first) {
      if (fits()) return;
    }
  }
  saved.others.push_back({std::string(trainer::kArgumentsPrefix) + "moe_layer_freq",
                          terminal_line(value->text(kMostText)), "every n-th layer"});
}

void take_experts(const Arguments& args, SavedModel& saved) {
  ModelSection& model = saved.model;
  if (!args.has("num_experts")) return;
  const auto experts = args.integer("num_experts");
  if (!experts) return model.moe.reset();
  if (!model.moe) model.moe.emplace();
  trainer::MoeSection& moe = *model.moe;
  moe.num_experts = *experts;
  moe.top_k = args.integer("moe_router_topk").value_or(moe.top_k);
  take_mixtures(args, saved);
  model.ffn_hidden_size = args.integer("moe_ffn_hidden_size").value_or(model.ffn_hidden_size);
  moe.routed_scaling_factor =
      args.number("moe_router_topk_scaling_factor").value_or(moe.routed_scaling_factor);
  if (args.has("moe_router_pre_softmax"))
    moe.normalize_top_k_affinities = !args.is_true("moe_router_pre_softmax");
  const bool is_sinkhorn = args.text("moe_router_load_balancing_type") == "sinkhorn";
  const bool is_sigmoid = args.text("moe_router_score_function") == "sigmoid";
  if (is_sinkhorn || is_sigmoid || args.has("moe_router_score_function"))
    moe.routing_algorithm = is_sinkhorn ? "sinkhorn" : is_sigmoid ? "group_limited" : "top_k";
  moe.num_groups = args.integer("moe_router_num_groups").value_or(moe.num_groups);
  moe.top_k_groups = args.integer("moe_router_group_topk").value_or(moe.top_k_groups);
}

void set_experts(const ModelSection& model, Value& arguments) {
  if (!model.moe) return;
  const trainer::MoeSection& moe = *model.moe;
  const bool is_grouped = moe.routing_algorithm == "group_limited";
  Value::List pattern;
  for (int layer = 0; layer < model.num_layers; ++layer)
    pattern.emplace_back(trainer::is_moe_layer(model, layer) ? 1 : 0);
  arguments.set("moe_router_topk", Value(moe.top_k));
  arguments.set("moe_layer_freq", moe.frequency == 1 ? Value(1) : Value::list(std::move(pattern)));
  arguments.set("moe_router_load_balancing_type",
                moe.routing_algorithm == "sinkhorn" ? "sinkhorn" : "aux_loss");
  if (moe.routing_algorithm != "sinkhorn") {
    arguments.set("moe_router_pre_softmax", Value(!is_grouped && !moe.normalize_top_k_affinities));
    arguments.set("moe_router_score_function", is_grouped ? "sigmoid" : "softmax");
  }
  if (moe.routed_scaling_factor != 1)
    arguments.set("moe_router_topk_scaling_factor", Value(moe.routed_scaling_factor));
  if (!is_grouped) return;
  arguments.set("moe_router_num_groups", Value(moe.num_groups));
  arguments.set("moe_router_group_topk", Value(moe.top_k_groups));
}

/// Arguments that change what a model computes, and that have one value here.
struct Fixed {
  const char *name, *value;
};
constexpr Fixed kFixed[] = {{"rotary_interleaved", "False"},
                            {"squared_relu", "False"},
                            {"quick_geglu", "False"},
                            {"gated_linear_unit", "False"},
                            {"apply_residual_connection_post_layernorm", "False"},
                            {"multi_latent_attention", "False"},
                            {"softmax_type", "vanilla"},
                            {"mtp_num_layers", "None"},
                            {"moe_shared_expert_intermediate_size", "None"},
                            {"moe_router_enable_expert_bias", "False"},
                            {"window_attn_skip_freq", "None"},
                            {"no_rope_freq", "None"},
                            {"qk_l2_norm", "False"},
                            {"attention_output_gate", "False"},
                            {"experimental_attention_variant", "None"},
                            {"heterogeneous_layers_config_path", "None"},
                            {"hybrid_override_pattern", "None"}};

void add_fixed(const Arguments& args, SavedModel& saved) {
  for (const Fixed& fixed : kFixed) {
    const Value* value = args.find(fixed.name);
    if (value == nullptr) continue;
    const std::string text = value->is_string() ? value->as_string() : value->text(kMostText);
    const bool is_off = text == "False" || text == "0";
    const bool off_is_neutral = std::string(fixed.value) != "vanilla";
    if (text == fixed.value || (is_off && off_is_neutral)) continue;
    saved.others.push_back(
        {std::string(trainer::kArgumentsPrefix) + fixed.name, terminal_line(text), fixed.value});
  }
}

/// Properties whose arguments Megatron-LM always keeps. Other writers of such folders may leave
/// them out.
struct ArgumentName {
  const char *key, *argument;
};
constexpr ArgumentName kArgumentNames[] = {
    {"model.num_layers", "num_layers"},
    {"model.hidden_size", "hidden_size"},
    {"model.ffn_hidden_size", "ffn_hidden_size"},
    {"model.num_attention_heads", "num_attention_heads"},
    {"model.num_kv_heads", "num_query_groups"},
    {"model.kv_channels", "kv_channels"},
    {"model.normalization", "normalization"},
    {"model.qk_layernorm", "qk_layernorm"},
    {"model.activation", "swiglu"},
    {"model.has_bias", "add_bias_linear"},
    {"model.qkv_bias", "add_qkv_bias"},
    {"model.share_embeddings_and_output_weights", "untie_embeddings_and_output_weights"},
    {"model.sliding_window_size", "window_size"},
    {"model.position_embedding_type", "position_embedding_type"},
    {"model.rope_theta", "rotary_base"},
    {"model.rotary_percentage", "rotary_percent"},
    {"model.rope_scaling.rope_type", "use_rope_scaling"},
    {"model.layernorm_epsilon", "norm_epsilon"},
    {"model.moe.num_experts", "num_experts"},
    {"model.moe.top_k", "moe_router_topk"},
    {"model.moe.frequency", "moe_layer_freq"},
    {"model.moe.normalize_top_k_affinities", "moe_router_pre_softmax"},
    {"model.moe.routed_scaling_factor", "moe_router_topk_scaling_factor"},
};

bool is_about_rope(const std::string& key) {
  return key == "model.rope_theta" || key == "model.rotary_percentage" ||
         key.starts_with("model.rope_scaling");
}

bool is_about_experts(const std::string& key) { return key.starts_with("model.moe."); }

void add_names(const Arguments& args, SavedModel& saved) {
  const bool rope = saved.model.position_embedding == PositionEmbedding::kRope;
  for (const ArgumentName& name : kArgumentNames) {
    saved.names[name.key] = std::string(trainer::kArgumentsPrefix) + name.argument;
    const bool is_said = args.has(name.argument) || (std::string(name.argument) == "norm_epsilon" &&
                                                     args.has("layernorm_epsilon"));
    const bool is_asked = (rope || !is_about_rope(name.key)) &&
                          (saved.model.moe || !is_about_experts(name.key)) &&
                          (saved.model.qkv_bias || std::string(name.key) != "model.qkv_bias");
    if (!is_said && is_asked) saved.unstated.emplace_back(name.key);
  }
}

}  // namespace

SavedModel model_of_arguments(const Value& args, const trainer::ModelSection& like,
                              const std::string& where) {
  const Arguments arguments(args, where);
  SavedModel saved{where, like};
  take_sizes(arguments, saved.model);
  take_norms(arguments, saved);
  take_mlp(arguments, saved.model);
  take_positions(arguments, saved);
  take_window(arguments, saved);
  take_experts(arguments, saved);
  if (arguments.has("untie_embeddings_and_output_weights"))
    saved.model.share_embeddings_and_output_weights =
        !arguments.is_true("untie_embeddings_and_output_weights");
  add_fixed(arguments, saved);
  add_names(arguments, saved);
  return saved;
}

void set_arguments(const trainer::ModelSection& model, Value& arguments) {
  if (model.qk_layernorm_across_heads)
    throw ConfigError(
        "model.qk_layernorm_across_heads: Megatron-core normalises each head by itself: expected "
        "false for a folder of it, or export-hf");
  const trainer::RopeScaling& scaling = model.rope_scaling;
  const auto set = [&](const char* name, Value value) { arguments.set(name, std::move(value)); };
  set("norm_epsilon", Value(model.layernorm_epsilon));
  set("apply_layernorm_1p", Value(model.normalization == Normalization::kLayerNorm1P));
  set("qk_layernorm", Value(model.qk_layernorm));
  set("add_bias_linear", Value(model.has_bias));
  if (model.qkv_bias) set("add_qkv_bias", Value(true));
  set("openai_gelu", Value(model.activation == Activation::kOpenAiGelu));
  set("rotary_base", Value(model.rope_theta));
  set("rotary_percent", Value(model.rotary_percentage));
  set("window_size",
      model.sliding_window ? Value::tuple({Value(*model.sliding_window - 1), Value(0)}) : Value());
  const bool is_llama3 = scaling.type == "llama3" && scaling.low_freq_factor == 1 &&
                         scaling.high_freq_factor == 4 &&
                         scaling.original_max_position_embeddings == 8192;
  if (is_llama3 || scaling.type == "linear" || scaling.type == "default")
    set("use_rope_scaling", Value(is_llama3));
  if (is_llama3) set("rope_scaling_factor", Value(scaling.factor));
  if (scaling.type == "linear") set("rotary_seq_len_interpolation_factor", Value(scaling.factor));
  if (is_gated(model.activation) && model.activation != Activation::kSwiglu)
    arguments.erase("swiglu");
  set_experts(model, arguments);
}

}  // namespace trellis::checkpoint::megatron
