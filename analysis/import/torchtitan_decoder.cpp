#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/import/key_words.h"
#include "analysis/import/torchtitan_json.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

constexpr const char* kHuggingFace =
    ": import the model's Hugging Face folder, or write the section `model`";

/// How weights begin and are sharded in torchtitan is no property of the model.
json stripped(const json& value) {
  if (value.is_array()) {
    json list = json::array();
    for (const json& each : value) list.push_back(stripped(each));
    return list;
  }
  if (!value.is_object()) return value;
  json object = json::object();
  for (const auto& [key, inner] : value.items())
    if (key != "param_init" && key != "sharding_config") object[key] = stripped(inner);
  return object;
}

/// Null where there is none, whatever the objects on the way are.
json part_of(const json& object, const char* pointer) {
  const json::json_pointer place(pointer);
  return object.contains(place) ? object.at(place) : json();
}

constexpr const char* kExpertSize = "/routed_experts/inner_experts/hidden_dim";

/// The reason why the trainer does not build these routed experts; "": it does.
std::string unbuilt_experts(const json& moe) {
  for (const char* size : {"/num_experts", "/router/top_k", kExpertSize})
    if (!part_of(moe, size).is_number_unsigned())
      return fmt::format("expected a number at {}", size);
  for (const char* factor : {"/router/route_norm", "/router/route_scale"})
    if (part_of(moe, factor).is_null()) return fmt::format("expected a value at {}", factor);
  if (part_of(moe, "/router/score_func") != "softmax")
    return "expected router.score_func softmax: affinities are a softmax here";
  if (part_of(moe, "/router/gate/bias") != false) return "expected a router without bias";
  if (!part_of(moe, "/router/num_expert_groups").is_null())
    return "groups of experts are chosen by another score here: see model.moe.num_groups";
  if (!part_of(moe, "/routed_experts/inner_experts/swiglu_limit").is_null())
    return "SwiGLU has no limit here";
  if (!part_of(moe, "/shared_experts").is_null())
    return "shared experts of torchtitan are one wide expert here: see "
           "model.moe.num_shared_experts";
  return "";
}

bool has_word(std::string_view words, std::string_view word) {
  bool found = false;
  for_each_word(words, [&](std::string_view each) { found |= each == word; });
  return found;
}

/// A decoder's properties one after the other, those of the first layer for all.
class Decoder {
 public:
  Decoder(const json& model, std::string where)
      : model_(stripped(model)), where_(std::move(where)) {}

  std::vector<ImportedKey> read() {
    if (!model_.is_object())
      return {unsupported(source("", model_), std::string("expected an object") + kHuggingFace)};
    json rest = model_;
    rest.erase("layers");
    add("", rest);
    const json layers = model_.value("layers", json());
    if (!layers.is_array() || layers.empty()) {
      keys_.push_back(unsupported(source("layers", layers),
                                  std::string("expected a list of layers") + kHuggingFace));
      return std::move(keys_);
    }
    keys_.push_back(mapped(source("layers", layers.size()),
                           {{"model.num_layers", std::to_string(layers.size())}}));
    add("layers.0", layers[0]);
    for (std::size_t i = 1; i < layers.size(); ++i) {
      if (layers[i] == layers[0]) continue;
      keys_.push_back(unsupported(
          source(fmt::format("layers.{}", i), "other than layer 0"),
          std::string("expected equal layers, and those from the first are taken") + kHuggingFace));
      break;
    }
    return std::move(keys_);
  }

 private:
  [[nodiscard]] SourceKey source(const std::string& path, const json& value) const {
    return {"model_spec.model." + path, value.dump(), where_};
  }

  [[nodiscard]] json at(const char* pointer) const { return part_of(model_, pointer); }

  void add(const std::string& path, const json& value) {
    const bool whole =
        path.ends_with("inner_attention") || path.ends_with("qk_norm") || path.ends_with("moe");
    if (value.is_object() && !whole) {
      for (const auto& [key, inner] : value.items())
        add(path.empty() ? key : path + "." + key, inner);
      return;
    }
    keys_.push_back(key(path, value));
  }

  ImportedKey key(const std::string& path, const json& value) const {
    const SourceKey from = source(path, value);
    const std::string name = path.substr(path.rfind('.') + 1);
    if (path == "vocab_size")
      return mapped(
          from, {{"model.vocab_size", value.dump()}, {"model.make_vocab_size_divisible_by", "1"}});
    if (const auto target = moved(path)) return mapped(from, {{*target, value.dump()}});
    if (path.starts_with("layers.0.attention.rope.")) return rope(from, name, value);
    if (name == "inner_attention")
      return unsupported(from,
                         "documents of a sequence do not see one another in torchtitan 0.3: here "
                         "attention is causal over the whole sequence");
    if (has_word("qk_norm moe head_dim n_kv_heads feed_forward", name))
      return part(from, name, value);
    if (name == "eps")
      return value == at("/norm/eps") ? at_default(from, "norms have one epsilon")
                                      : unsupported(from, "expected that of the last norm");
    if (has_word("bias", name))
      return value == false ? at_default(from, "layers have no bias")
                            : unsupported(from, std::string("expected false") + kHuggingFace);
    if (name == "elementwise_affine")
      return value == true ? at_default(from, "norms have weights")
                           : unsupported(from, std::string("expected true") + kHuggingFace);
    if (has_word("in_features out_features normalized_shape num_embeddings embedding_dim dim "
                 "n_heads",
                 name))
      return at_default(from, "it follows from the model's sizes");
    return {from,
            ImportStatus::kUnclassified,
            {},
            std::string("no part of torchtitan 0.3.0's llama3 or qwen3") + kHuggingFace};
  }

  [[nodiscard]] static std::optional<std::string> moved(const std::string& path) {
    constexpr std::pair<std::string_view, std::string_view> kMoved[] = {
        {"dim", "hidden_size"},
        {"enable_weight_tying", "share_embeddings_and_output_weights"},
        {"norm.eps", "layernorm_epsilon"},
        {"layers.0.attention.n_heads", "num_attention_heads"},
        {"layers.0.attention.qkv_linear.n_kv_heads", "num_kv_heads"},
        {"layers.0.feed_forward.w1.out_features", "ffn_hidden_size"},
        {"layers.0.attention.rope.theta", "position_freq_base"}};
    for (const auto& [given, target] : kMoved)
      if (given == path) return "model." + std::string(target);
    return std::nullopt;
  }

  [[nodiscard]] ImportedKey rope(const SourceKey& from, const std::string& name,
                                 const json& value) const {
    const json scaling = at("/layers/0/attention/rope/scaling");
    const std::string target = "model.rope_scaling.";
    if (name == "scaling") {
      if (value == "llama") return mapped(from, {{target + "rope_type", "llama3"}});
      if (value == "none") return at_default(from, "angles are not scaled");
      return unsupported(from, std::string("expected llama or none") + kHuggingFace);
    }
    const bool of_llama = has_word(
        "scaling_factor low_freq_factor high_freq_factor original_max_position_embeddings", name);
    if (of_llama && scaling == "llama")
      return mapped(from, {{target + (name == "scaling_factor" ? "factor" : name), value.dump()}});
    if (of_llama || has_word("dim max_seq_len rope_factor beta_fast beta_slow original_seq_len "
                             "truncate",
                             name))
      return at_default(from, "this scaling of angles does not read it");
    return {from, ImportStatus::kUnclassified, {}, "torchtitan 0.3.0 has no key of this name"};
  }

  [[nodiscard]] ImportedKey norms_of_heads(const SourceKey& from, const json& value) const {
    const bool built =
        part_of(value, "/eps") == at("/norm/eps") &&
        part_of(value, "/elementwise_affine") == true &&
        part_of(value, "/normalized_shape") == at("/layers/0/attention/qkv_linear/head_dim");
    return built ? mapped(from, {{"model.qk_layernorm", "true"}})
                 : unsupported(from, std::string("expected norms over a head, with weights and the "
                                                 "epsilon of the last norm") +
                                         kHuggingFace);
  }

  [[nodiscard]] ImportedKey experts(const SourceKey& from, const json& moe) const {
    if (const std::string unbuilt = unbuilt_experts(moe); !unbuilt.empty())
      return unsupported(from, unbuilt + kHuggingFace);
    const std::string section = "model.moe.";
    const json scale = part_of(moe, "/router/route_scale");
    std::vector<Setting> settings = {
        {"model.ffn_hidden_size", part_of(moe, kExpertSize).dump()},
        {section + "num_experts", part_of(moe, "/num_experts").dump()},
        {section + "top_k", part_of(moe, "/router/top_k").dump()},
        {section + "dropless", "true"},
        {section + "routing_algorithm", "top_k"},
        {section + "normalize_top_k_affinities", part_of(moe, "/router/route_norm").dump()},
        {section + "output_router_logits", "false"},
        {section + "router_aux_loss_coef", "0"}};
    if (scale != 1) settings.push_back({section + "routed_scaling_factor", scale.dump()});
    return mapped(
        from, std::move(settings),
        part_of(moe, "/load_balance_coeff").is_null()
            ? ""
            : "load_balance_coeff moves a bias of each expert in torchtitan; here nothing balances "
              "the experts: set model.moe.output_router_logits and router_aux_loss_coef");
  }

  [[nodiscard]] ImportedKey part(const SourceKey& from, const std::string& name,
                                 const json& value) const {
    if (value.is_null()) return at_default(from, "the layers have none");
    if (name == "n_kv_heads") return at_default(from, "qkv_linear decides");
    if (name == "qk_norm") return norms_of_heads(from, value);
    if (name == "moe") return experts(from, value);
    const json dim = at("/dim"), heads = at("/layers/0/attention/n_heads");
    const bool follows = dim.is_number_unsigned() && heads.is_number_unsigned() && heads > 0 &&
                         value == dim.get<std::uint64_t>() / heads.get<std::uint64_t>();
    return follows ? at_default(from, "it follows from the model's sizes")
                   : mapped(from, {{"model.kv_channels", value.dump()}});
  }

  json model_;
  std::string where_;
  std::vector<ImportedKey> keys_;
};

}  // namespace

std::vector<ImportedKey> torchtitan_decoder(const json& model, const std::string& where) {
  return Decoder(model, where).read();
}

}  // namespace trellis::analysis
