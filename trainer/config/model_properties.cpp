#include "trainer/config/model_properties.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/nearest.h"
#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

constexpr const char* kNoPart = "none";
constexpr const char* kThetaKey = "model.rope_theta";
constexpr const char* kMegatronThetaKey = "model.position_freq_base";

using PropertyModel = ModelSection;

template <typename T>
std::string value_text(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string value_text(const std::optional<T>& value) {
  return value ? value_text(*value) : kNoPart;
}

/// The value where the model has such a part.
template <typename Value>
std::string value_where(bool has_part, const Value& value) {
  return has_part ? value_text(value) : kNoPart;
}

bool has_rope(const PropertyModel& m) { return m.position_embedding == PositionEmbedding::kRope; }
bool scales(const PropertyModel& m) { return has_rope(m) && m.rope_scaling.type != "default"; }
bool scales_by(const PropertyModel& m, const char* type) {
  return has_rope(m) && m.rope_scaling.type == type;
}

/// A property of the mixture of experts.
template <typename Member>
std::string of_moe(const PropertyModel& m, Member member) {
  return m.moe ? value_text(*m.moe.*member) : kNoPart;
}
template <typename Member>
std::string of_image(const PropertyModel& m, Member member) {
  return m.image ? value_text(*m.image.*member) : kNoPart;
}

/// Shares of one pick are 1, normalised or not.
std::string affinities(const PropertyModel& m) {
  return m.moe && m.moe->top_k > 1 ? value_text(m.moe->normalize_top_k_affinities) : kNoPart;
}

std::string mixture_layers(const PropertyModel& m) {
  if (!m.moe) return kNoPart;
  if (m.moe->frequency == 1) return "1";
  return fmt::format("{} from layer {} on", m.moe->frequency, m.moe->first_layer);
}

struct PropertyRow {
  const char* key;
  std::string (*value)(const PropertyModel&);
};

const PropertyRow kProperties[] = {
    {"model.num_layers", [](const PropertyModel& m) { return value_text(m.num_layers); }},
    {"model.hidden_size", [](const PropertyModel& m) { return value_text(m.hidden_size); }},
    {"model.ffn_hidden_size", [](const PropertyModel& m) { return value_text(m.ffn_hidden_size); }},
    {"model.num_attention_heads",
     [](const PropertyModel& m) { return value_text(m.num_attention_heads); }},
    {"model.num_kv_heads", [](const PropertyModel& m) { return value_text(m.num_kv_heads); }},
    {"model.kv_channels", [](const PropertyModel& m) { return value_text(m.head_dim); }},
    {"model.normalization", [](const PropertyModel& m) { return name_of(m.normalization); }},
    {"model.layernorm_epsilon",
     [](const PropertyModel& m) { return value_text(m.layernorm_epsilon); }},
    {"model.layernorm_bias",
     [](const PropertyModel& m) {
       return value_where(m.normalization != Normalization::kRmsNorm, m.layernorm_bias);
     }},
    {"model.qk_layernorm", [](const PropertyModel& m) { return value_text(m.qk_layernorm); }},
    {"model.qk_layernorm_across_heads",
     [](const PropertyModel& m) { return value_text(m.qk_layernorm_across_heads); }},
    {"model.activation", [](const PropertyModel& m) { return name_of(m.activation); }},
    {"model.transformer_block_type",
     [](const PropertyModel& m) { return name_of(m.transformer_block_type); }},
    {"model.has_bias", [](const PropertyModel& m) { return value_text(m.has_bias); }},
    {"model.qkv_bias", [](const PropertyModel& m) { return value_text(has_qkv_bias(m)); }},
    {"model.clip_qkv", [](const PropertyModel& m) { return value_text(m.clip_qkv); }},
    {"model.share_embeddings_and_output_weights",
     [](const PropertyModel& m) { return value_text(m.share_embeddings_and_output_weights); }},
    {"model.sliding_window_size",
     [](const PropertyModel& m) { return value_text(m.sliding_window); }},
    {"model.position_embedding_type",
     [](const PropertyModel& m) { return name_of(m.position_embedding); }},
    {"model.max_position_embeddings",  // the rows of a table that is learned
     [](const PropertyModel& m) { return value_where(!has_rope(m), m.max_position_embeddings); }},
    {kThetaKey, [](const PropertyModel& m) { return value_where(has_rope(m), m.rope_theta); }},
    {"model.rotary_percentage",
     [](const PropertyModel& m) { return value_where(has_rope(m), m.rotary_percentage); }},
    {"model.rope_scaling.rope_type",
     [](const PropertyModel& m) { return value_where(has_rope(m), m.rope_scaling.type); }},
    {"model.rope_scaling.factor",
     [](const PropertyModel& m) { return value_where(scales(m), m.rope_scaling.factor); }},
    {"model.rope_scaling.low_freq_factor",
     [](const PropertyModel& m) {
       return value_where(scales_by(m, "llama3"), m.rope_scaling.low_freq_factor);
     }},
    {"model.rope_scaling.high_freq_factor",
     [](const PropertyModel& m) {
       return value_where(scales_by(m, "llama3"), m.rope_scaling.high_freq_factor);
     }},
    {"model.rope_scaling.original_max_position_embeddings",
     [](const PropertyModel& m) {
       return value_where(scales_by(m, "llama3") || scales_by(m, "dynamic"),
                          m.rope_scaling.original_max_position_embeddings);
     }},
    {"model.moe.num_experts",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::num_experts); }},
    {"model.moe.top_k", [](const PropertyModel& m) { return of_moe(m, &MoeSection::top_k); }},
    {"model.moe.frequency", &mixture_layers},
    {"model.moe.routing_algorithm",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::routing_algorithm); }},
    {"model.moe.router_activation",
     [](const PropertyModel& m) {
       const bool reads = m.moe && m.moe->routing_algorithm == "sinkhorn";
       return reads ? m.moe->router_activation : kNoPart;
     }},
    {"model.moe.normalize_top_k_affinities", &affinities},
    {"model.moe.glu_mlp", [](const PropertyModel& m) { return of_moe(m, &MoeSection::glu_mlp); }},
    {"model.moe.num_groups",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::num_groups); }},
    {"model.moe.top_k_groups",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::top_k_groups); }},
    {"model.moe.routed_scaling_factor",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::routed_scaling_factor); }},
    {"model.moe.num_shared_experts",
     [](const PropertyModel& m) { return of_moe(m, &MoeSection::num_shared_experts); }},
    {"model.type_vocab_size",
     [](const PropertyModel& m) {
       return value_where(m.architecture == "bert", m.type_vocab_size);
     }},
    {"model.image_size", [](const PropertyModel& m) { return of_image(m, &ImageSection::size); }},
    {"model.patch_size", [](const PropertyModel& m) { return of_image(m, &ImageSection::patch); }},
    {"model.num_channels",
     [](const PropertyModel& m) { return of_image(m, &ImageSection::channels); }},
    {"model.num_labels", [](const PropertyModel& m) { return of_image(m, &ImageSection::labels); }},
    {"model_alignment_strategy.peft.lora_alpha",
     [](const PropertyModel& m) { return m.lora ? value_text(m.lora->alpha) : kNoPart; }},
    {"model_alignment_strategy.peft.use_rslora",
     [](const PropertyModel& m) { return m.lora ? value_text(m.lora->use_rslora) : kNoPart; }},
};

/// A model gets adapters, or is what they are next to, without another difference.
bool is_of_added_adapters(const std::string& key, const std::string& a, const std::string& b) {
  return key.starts_with("model_alignment_strategy.") && (a == kNoPart || b == kNoPart);
}

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string canonical_key(std::string key) {
  if (key == kMegatronThetaKey || key == "position_freq_base") return kThetaKey;
  const bool is_short = std::ranges::any_of(
      kProperties, [&](const PropertyRow& row) { return row.key == std::string("model.") + key; });
  return is_short || key == "vocab_size" ? "model." + key : key;
}

}  // namespace

std::vector<ModelProperty> model_properties(const ModelSection& model) {
  std::vector<ModelProperty> properties;
  for (const PropertyRow& row : kProperties) properties.push_back({row.key, row.value(model)});
  return properties;
}

bool is_same_value(const std::string& a, const std::string& b) {
  const auto x = number_in(a), y = number_in(b);
  constexpr double kOfFloat32 = 2e-7;
  if (!x || !y) return a == b;
  return std::abs(*x - *y) <= kOfFloat32 * std::max(std::abs(*x), std::abs(*y));
}

std::vector<ModelDifference> model_differences(const ModelSection& saved,
                                               const ModelSection& wanted) {
  std::vector<ModelDifference> differences;
  for (const PropertyRow& row : kProperties) {
    std::string before = row.value(saved), now = row.value(wanted);
    if (!is_same_value(before, now) && !is_of_added_adapters(row.key, before, now))
      differences.push_back({row.key, std::move(before), std::move(now)});
  }
  return differences;
}

std::string why_not_accepted(const std::string& key) {
  const std::string name = canonical_key(key);
  std::vector<std::string> known = {kVocabularyKey, kUnusedWeightsKey};
  for (const PropertyRow& row : kProperties) known.emplace_back(row.key);
  if (std::ranges::find(known, name) != known.end() || name.starts_with(kArgumentsPrefix))
    return "";
  const std::string nearest = nearest_name(name, known);
  return fmt::format(
      "`{}` is no property of a model{}; expected a key that a refused checkpoint was named with, "
      "such as {}",
      key, nearest.empty() ? "" : fmt::format(", did you mean `{}`?", nearest), kThetaKey);
}

bool is_accepted(const std::vector<std::string>& accepted, const std::string& key) {
  return std::ranges::any_of(
      accepted, [&](const std::string& each) { return canonical_key(each) == canonical_key(key); });
}

std::string key_of(const RunConfig& config, const std::string& key) {
  return config.model_source == "megatron" && key == kThetaKey ? kMegatronThetaKey : key;
}

}  // namespace trellis::trainer
