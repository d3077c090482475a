#include "trainer/config/sections/hf_model_config.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "trainer/config/families/model_family.h"
#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

class JsonReader {
 public:
  JsonReader(const json& object, std::string file, const HfProblem& problem)
      : object_(object), file_(std::move(file)), problem_(problem) {}

  void positive(const char* name, std::optional<int>& value) {
    const json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number_integer() || *found < 1 || *found > std::numeric_limits<int>::max()) {
      return problem(name, "expected an integer of at least 1, got " + found->dump());
    }
    value = found->get<int>();
  }

  void positive(const char* name, std::optional<double>& value) {
    const json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number() || *found <= 0)
      return problem(name, "expected a number greater than 0, got " + found->dump());
    value = found->get<double>();
  }

  void probability(const char* name, std::optional<double>& value) {
    const json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number() || *found < 0 || *found > 1)
      return problem(name, "expected a number in [0, 1], got " + found->dump());
    value = found->get<double>();
  }

  bool boolean(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return false;
    if (!found->is_boolean()) problem(name, "expected true or false, got " + found->dump());
    return *found == true;
  }

  std::string text(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return "";
    if (found->is_string()) return found->get<std::string>();
    problem(name, "expected a text, got " + found->dump());
    return "";
  }

  [[nodiscard]] const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  /// The reader of a nested object; none when it is absent or no object.
  std::optional<JsonReader> object(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (found->is_object()) return JsonReader(*found, file_ + ": " + name, problem_);
    problem(name, "expected an object, got " + found->dump());
    return std::nullopt;
  }

  void problem(const char* name, const std::string& what) { problem_(at(name, what)); }
  /// A text with its file and key.
  [[nodiscard]] std::string at(const char* name, const std::string& what) const {
    return fmt::format("{}: {}: {}", file_, name, what);
  }
  /// A property that every model of the hub has alike; an absent key has this value.
  void only(const char* name, const json& value) {
    const json* found = find(name);
    if (found == nullptr || *found == value) return;
    problem(name, fmt::format("{} is not supported in this version; only {} is", found->dump(),
                              value.dump()));
  }

 private:
  const json& object_;
  std::string file_;
  const HfProblem& problem_;
};

void read_sizes(JsonReader& fields, HfModelConfig& config) {
  fields.positive("num_hidden_layers", config.num_hidden_layers);
  fields.positive("hidden_size", config.hidden_size);
  fields.positive("intermediate_size", config.intermediate_size);
  fields.positive("num_attention_heads", config.num_attention_heads);
  fields.positive("num_key_value_heads", config.num_key_value_heads);
  fields.positive("head_dim", config.head_dim);
  fields.positive("max_position_embeddings", config.max_position_embeddings);
  fields.positive("vocab_size", config.vocab_size);
  fields.positive("rope_theta", config.rope_theta);
  fields.positive("rms_norm_eps", config.rms_norm_eps);
  fields.positive("initializer_range", config.initializer_range);
  fields.probability("attention_dropout", config.attention_dropout);
}

/// `rope_scaling`, with `rope_type` or the older `type`; newer files hold it, and the theta, in
/// `rope_parameters`.
void read_rope_scaling(JsonReader& fields, HfModelConfig& config) {
  const char* name = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  auto scaling = fields.object(name);
  if (!scaling) return;
  scaling->positive("rope_theta", config.rope_theta);
  const char* type_key = scaling->find("rope_type") != nullptr ? "rope_type" : "type";
  RopeScaling result;
  if (scaling->find(type_key) == nullptr && scaling->find("factor") != nullptr)
    return scaling->problem("rope_type", "missing next to factor");
  if (scaling->find(type_key) != nullptr) result.type = scaling->text(type_key);
  if (!is_later_rope_type(result.type) &&
      std::ranges::find(rope_types(), result.type) == rope_types().end()) {
    return scaling->problem(
        type_key, fmt::format("unknown type {}; expected {}", scaling->find(type_key)->dump(),
                              join_names(rope_types())));
  }
  std::optional<double> factor, low, high;
  std::optional<int> original;
  scaling->positive("factor", factor);
  scaling->positive("low_freq_factor", low);
  scaling->positive("high_freq_factor", high);
  scaling->positive("original_max_position_embeddings", original);
  if (result.type != "default" && !factor)
    scaling->problem("factor", fmt::format("the type {} needs it", result.type));
  result.factor = factor.value_or(result.factor);
  result.low_freq_factor = low.value_or(result.low_freq_factor);
  result.high_freq_factor = high.value_or(result.high_freq_factor);
  result.original_max_position_embeddings = original.value_or(0);
  if (result.type != "default") config.rope_scaling = result;
}

void read_mixtral(JsonReader& fields, HfModelConfig& config) {
  std::optional<int> experts, top_k;
  std::optional<double> coefficient;
  fields.positive("num_local_experts", experts);
  fields.positive("num_experts_per_tok", top_k);
  fields.probability("router_aux_loss_coef", coefficient);
  MoeSection moe;
  moe.num_experts = experts.value_or(8);
  moe.top_k = top_k.value_or(moe.top_k);
  moe.normalize_top_k_affinities = moe.top_k > 1;
  if (moe.top_k == 1)
    config.warnings.push_back(fields.at(
        "num_experts_per_tok",
        "1: affinities are not normalised here, where transformers computes with 1, without "
        "a gradient for the router (NxD refuses that with ValueError)"));
  moe.output_router_logits = fields.boolean("output_router_logits");
  moe.router_aux_loss_coef = coefficient.value_or(moe.router_aux_loss_coef);
  config.moe = moe;
}

/// BERT and ViT call the rest alike, and have no key that says more.
void read_encoder(JsonReader& fields, HfModelConfig& config) {
  fields.positive("layer_norm_eps", config.rms_norm_eps);
  fields.probability("hidden_dropout_prob", config.hidden_dropout);
  fields.probability("attention_probs_dropout_prob", config.attention_dropout);
  fields.only("hidden_act", "gelu");
  if (config.model_type == "bert") {
    fields.positive("type_vocab_size", config.type_vocab_size);
    fields.only("position_embedding_type", "absolute");
    fields.only("tie_word_embeddings", true);
    config.tie_word_embeddings = true;
    return;
  }
  fields.positive("image_size", config.image_size);
  fields.positive("patch_size", config.patch_size);
  fields.positive("num_channels", config.num_channels);
  fields.positive("num_labels", config.num_labels);
  fields.only("qkv_bias", true);
}

bool is_any(const ModelFamily& /*family*/) { return true; }

/// Reads the keys of a decoder. `family`: null when its type is not known.
void read_decoder(JsonReader& fields, const ModelFamily* family, HfModelConfig& config) {
  const json* window_switch = fields.find("use_sliding_window");
  if ((family == nullptr || family->windows) &&
      (window_switch == nullptr || *window_switch == true))
    fields.positive("sliding_window", config.sliding_window);
  // Where the family has biases of queries, keys and values, transformers does not read it.
  if (family == nullptr || !family->structure.qkv_bias) fields.only("attention_bias", false);
  fields.only("mlp_bias", false);
  fields.only("hidden_act", "silu");
  fields.only("pretraining_tp", 1);
}

void read_family(JsonReader& fields, HfModelConfig& config) {
  const std::string type = config.model_type = fields.text("model_type");
  const ModelFamily* family = find_family(type);
  if (family != nullptr && !is_on_hub(*family)) return read_encoder(fields, config);
  if (family == nullptr && !type.empty()) {
    fields.problem("model_type", fmt::format("\"{}\" is no model of the hub; expected {}", type,
                                             join_names(family_types(&is_any))));
    config.model_type.clear();
  }
  if (family != nullptr) {
    if (family->experts) read_mixtral(fields, config);
    if (!config.head_dim && family->defaults.head_dim > 0)
      config.head_dim = family->defaults.head_dim;
    if (family->off != nullptr) fields.only(family->off, false);
  }
  read_decoder(fields, family, config);
}

}  // namespace

const std::vector<std::string>& rope_types() {
  static const std::vector<std::string> types = {"default", "linear", "dynamic", "llama3"};
  return types;
}

bool is_later_rope_type(const std::string& type) { return type == "yarn" || type == "longrope"; }

/// Those on the hub have a few kilobytes.
constexpr std::int64_t kMostModelBytes = 1 << 20;

HfModelConfig parse_hf_model_config(const std::string& text, const std::string& file,
                                    const HfProblem& problem) {
  HfModelConfig config;
  json object;
  try {
    object = parse_json(text, file, "a Hugging Face config.json");
  } catch (const ConfigError& error) {
    problem(error.what());
    return config;
  }
  if (!object.is_object()) {
    problem(fmt::format("{} is not a JSON object; expected a Hugging Face config.json", file));
    return config;
  }
  JsonReader fields(object, file, problem);
  read_sizes(fields, config);
  read_rope_scaling(fields, config);
  read_family(fields, config);
  if (fields.find("tie_word_embeddings") != nullptr)
    config.tie_word_embeddings = fields.boolean("tie_word_embeddings");
  const std::string dtype =
      fields.text(fields.find("torch_dtype") != nullptr ? "torch_dtype" : "dtype");
  config.bf16 = dtype == "bfloat16";
  return config;
}

HfModelConfig read_hf_model_config(const std::filesystem::path& file, SectionReader& reader,
                                   const std::string& key) {
  const HfProblem problem = [&](const std::string& text) { reader.problem(key, text); };
  try {
    HfModelConfig config =
        parse_hf_model_config(read_input_file(file, kMostModelBytes), file.string(), problem);
    for (const std::string& warning : config.warnings) reader.warn(key, warning);
    return config;
  } catch (const ConfigError& error) {
    problem(error.what());
    return {};
  }
}

}  // namespace trellis::trainer
