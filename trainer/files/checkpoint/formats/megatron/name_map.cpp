#include "trainer/files/checkpoint/formats/megatron/name_map.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::checkpoint::megatron {
namespace {

/// Names of one family; of layers below the layer's number.
struct Family {
  const char* layers;
  struct Name {
    const char *native, *megatron;
  };
  std::vector<Name> whole, of_layer;  ///< with their ends ".weight" or ".bias"
  std::vector<const char*> q_k_v;     ///< modules that linear_qkv fuses
  const char *gate, *up;              ///< modules that linear_fc1 fuses
};

constexpr const char* kNativeRouter = "mlp.router.linear_router";
constexpr const char* kNativeNorm = "post_attention_layernorm";
/// A mixture has this name with transformer_engine; without it that of a dense layer.
constexpr const char* kMixtureNorm = "pre_mlp_layernorm";

/// Weights of stacked experts.
struct ExpertName {
  const char *native, *megatron;
};
constexpr ExpertName kExpertNames[] = {
    {"mlp.expert_mlps.mlp_op.gate_up_proj", "mlp.experts.experts.linear_fc1"},
    {"mlp.expert_mlps.mlp_op.down_proj", "mlp.experts.experts.linear_fc2"}};

const Family& llama() {
  static const Family family{"model.layers.",
                             {{"model.embed_tokens", "embedding.word_embeddings"},
                              {"model.norm", "decoder.final_layernorm"},
                              {"lm_head", "output_layer"}},
                             {{"input_layernorm", "self_attention.linear_qkv.layer_norm"},
                              {"post_attention_layernorm", "mlp.linear_fc1.layer_norm"},
                              {"self_attn.o_proj", "self_attention.linear_proj"},
                              {"self_attn.q_norm", "self_attention.q_layernorm"},
                              {"self_attn.k_norm", "self_attention.k_layernorm"},
                              {kNativeRouter, "mlp.router"},
                              {"mlp.down_proj", "mlp.linear_fc2"}},
                             {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                             "mlp.gate_proj",
                             "mlp.up_proj"};
  return family;
}

const Family& gpt() {
  static const Family family{
      "language_model.encoder.layers.",
      {{"language_model.embedding.word_embeddings", "embedding.word_embeddings"},
       {"language_model.embedding.position_embeddings", "embedding.position_embeddings"},
       {"language_model.encoder.final_layernorm", "decoder.final_layernorm"},
       {"language_model.output_layer", "output_layer"}},
      {{"input_layernorm", "self_attention.linear_qkv.layer_norm"},
       {"post_attention_layernorm", "mlp.linear_fc1.layer_norm"},
       {"self_attention.dense", "self_attention.linear_proj"},
       {"self_attention.q_layernorm", "self_attention.q_layernorm"},
       {"self_attention.k_layernorm", "self_attention.k_layernorm"},
       {kNativeRouter, "mlp.router"},
       {"mlp.dense_4h_to_h", "mlp.linear_fc2"}},
      {"self_attention.query", "self_attention.key_value"},
      "mlp.dense_h_to_4h",
      "mlp.dense_h_to_4h_2"};
  return family;
}
constexpr const char* kQkv = "self_attention.linear_qkv";
constexpr const char* kFc1 = "mlp.linear_fc1";
/// Native name in a Megatron model without groups, which has the rows of linear_qkv unchanged.
constexpr const char* kFusedQkv = "self_attention.query_key_value";

/// Norms of Megatron-core have their names' end with an underscore: layer_norm_weight.
std::string megatron_name(const std::string& module, const std::string& end) {
  const bool joins = module.ends_with(".layer_norm") && !end.empty();
  return joins ? module + "_" + end.substr(1) : module + end;
}

/// "x.weight" → "x", ".weight".
std::pair<std::string, std::string> split_end(const std::string& key) {
  for (const char* end : {".weight", ".bias", "_weight", "_bias"}) {
    if (key.ends_with(end)) {
      const std::size_t size = key.size() - std::string_view(end).size();
      return {key.substr(0, size), "." + std::string(end + 1)};
    }
  }
  return {key, ""};
}

struct LayerKey {
  std::int64_t layer = -1;
  std::string rest;
};

/// "model.layers.3.mlp" → 3, "mlp".
LayerKey split_layer(const std::string& key, const std::string& prefix) {
  if (!key.starts_with(prefix)) return {-1, key};
  const char* begin = key.data() + prefix.size();
  LayerKey result;
  const auto [end, error] = std::from_chars(begin, key.data() + key.size(), result.layer);
  if (error != std::errc() || end == key.data() + key.size() || *end != '.' || result.layer < 0)
    return {-1, key};
  result.rest = std::string(end + 1, key.data() + key.size());
  return result;
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

/// For each group the rows of queries, then those of what follows: k and v, or both as one.
std::vector<RowBlock> grouped(const std::vector<std::string>& keys,
                              const std::vector<std::int64_t>& rows, std::int64_t groups) {
  std::vector<RowBlock> blocks;
  std::int64_t first = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::int64_t share = rows[i] / groups;
      blocks.push_back({keys[i], first, group * share, share});
      first += share;
    }
  }
  return blocks;
}

/// Between the two sets of names, in one family.
class Mapping {
 public:
  Mapping(const Family& family, const ShapeOf& shapes, const AttentionSizes& attention,
          std::string where)
      : family_(family), shapes_(shapes), attention_(attention), where_(std::move(where)) {}

  void add_native(const std::string& key, const Shape& shape) {
    const LayerKey place = split_layer(key, family_.layers);
    const auto [module, end] = split_end(place.rest);
    for (const ExpertName& name : kExpertNames) {
      if (place.layer >= 0 && module == name.native)
        return add_experts(key, name.megatron + end, place.layer, shape);
    }
    if (module == kNativeNorm && native_rows(place.layer, kNativeRouter, ".weight"))
      add(kMixtureNorm + end, place.layer, shape, {{key, 0, 0, rows(shape)}});
    for (const Family::Name& name : place.layer < 0 ? family_.whole : family_.of_layer) {
      if (module == name.native && !end.empty())
        return add(megatron_name(name.megatron, end), place.layer, shape,
                   {{key, 0, 0, rows(shape)}});
    }
    if (place.layer < 0)
      return problems_.add(where_, key + " has no place in Megatron-core's model");
    const bool has_rows = module == family_.q_k_v[0] || module == family_.gate;
    if (has_rows && shape.empty())
      return problems_.add(where_, key + ": expected rows, got a single number");
    if (module == kFusedQkv) return add(kQkv + end, place.layer, shape, {{key, 0, 0, rows(shape)}});
    if (module == family_.q_k_v[0]) return add_qkv(place.layer, end, shape);
    if (module == family_.gate) return add_fc1(place.layer, end, shape);
    const bool is_part =
        module == family_.up ||
        std::find(family_.q_k_v.begin(), family_.q_k_v.end(), module) != family_.q_k_v.end();
    if (!is_part) problems_.add(where_, key + " has no place in Megatron-core's model");
  }

  void add_megatron(const std::string& key, const Shape& shape) {
    const LayerKey place = split_layer(key, kLayers);
    const auto [module, end] = split_end(place.rest);
    for (const ExpertName& name : kExpertNames) {
      if (place.layer >= 0 && module == name.megatron)
        return split_experts(key, native_key(place.layer, name.native, end), place, shape);
    }
    if (place.layer >= 0 && module == kMixtureNorm) return add_mixture_norm(key, end, place, shape);
    for (const Family::Name& name : place.layer < 0 ? family_.whole : family_.of_layer) {
      if (place.rest == megatron_name(name.megatron, end) && !end.empty())
        return add(place.rest, place.layer, shape,
                   {{native_key(place.layer, name.native, end), 0, 0, rows(shape)}});
    }
    if (place.layer >= 0 && module == kQkv) return split_qkv(place.layer, end, shape);
    if (place.layer >= 0 && module == kFc1) return split_fc1(place.layer, end, shape);
    add(place.rest, place.layer, shape, {{key, 0, 0, rows(shape)}});
  }

  std::vector<MegatronWeight> take() {
    problems_.throw_if_any();
    return std::move(weights_);
  }

 private:
  static std::int64_t rows(const Shape& shape) { return shape.empty() ? 1 : shape[0]; }
  [[nodiscard]] std::string native_key(std::int64_t layer, const std::string& module,
                                       const std::string& end) const {
    const std::string path = layer < 0 ? "" : family_.layers + std::to_string(layer) + ".";
    return path + module + end;
  }
  void add(const std::string& key, std::int64_t layer, const Shape& shape,
           std::vector<RowBlock> blocks) {
    weights_.push_back({key, layer, shape, std::move(blocks)});
  }
  /// Rows of a native weight of the layer; none: it is not there.
  [[nodiscard]] std::optional<std::int64_t> native_rows(std::int64_t layer,
                                                        const std::string& module,
                                                        const std::string& end) const {
    const auto found = shapes_.find(native_key(layer, module, end));
    return found == shapes_.end() ? std::nullopt : std::optional(rows(found->second));
  }
  [[nodiscard]] bool has_heads(const std::string& what) {
    if (attention_.heads > 0) return true;
    if (!std::exchange(asked_, true))
      problems_.add(where_,
                    what +
                        ": the number of attention heads is not known: expected it in args of "
                        "common.pt, in a configuration (--config), or from --heads");
    return false;
  }
  [[nodiscard]] bool divides(const std::string& what, std::int64_t size, std::int64_t by) {
    if (by > 0 && size % by == 0) return true;
    problems_.add(where_, what + ": expected a multiple of " + std::to_string(by) + " rows, got " +
                              std::to_string(size) + "; correct the numbers of heads");
    return false;
  }

  /// Stacked rows of a layer's experts, of which its router has one row each.
  void add_experts(const std::string& key, const std::string& there, std::int64_t layer,
                   const Shape& shape) {
    const std::int64_t experts = native_rows(layer, kNativeRouter, ".weight").value_or(0);
    if (experts <= 0 || shape.size() != 2 || shape[0] % experts != 0)
      return problems_.add(
          where_,
          fmt::format("{}: expected rows of as many experts as {} has rows "
                      "({}), got {}",
                      key, native_key(layer, kNativeRouter, ".weight"), experts, text_of(shape)));
    add_each(there, layer, key, experts, with_rows(shape, shape[0] / experts));
  }
  void split_experts(const std::string& key, const std::string& native, const LayerKey& place,
                     const Shape& shape) {
    if (shape.size() != 3 || elements_of(shape) == 0)
      return problems_.add(where_, key +
                                       ": expected three dimensions, experts, rows and columns, "
                                       "got " +
                                       text_of(shape));
    add_each(place.rest, place.layer, native, shape[0], {shape[1], shape[2]});
  }
  void add_each(const std::string& there, std::int64_t layer, const std::string& native,
                std::int64_t experts, const Shape& matrix) {
    for (std::int64_t expert = 0; expert < experts; ++expert)
      weights_.push_back(
          {there, layer, matrix, {{native, 0, expert * matrix[0], matrix[0]}}, expert, experts});
  }
  /// Where the folder has both names, the other one counts.
  void add_mixture_norm(const std::string& key, const std::string& end, const LayerKey& place,
                        const Shape& shape) {
    const std::string other = key.substr(0, key.size() - place.rest.size()) +
                              megatron_name("mlp.linear_fc1.layer_norm", end);
    if (shapes_.contains(other)) return;
    add(place.rest, place.layer, shape,
        {{native_key(place.layer, kNativeNorm, end), 0, 0, rows(shape)}});
  }

  void add_qkv(std::int64_t layer, const std::string& end, const Shape& query) {
    const std::string name = native_key(layer, family_.q_k_v[0], end);
    if (!has_heads(name)) return;
    std::vector<std::string> keys;
    std::vector<std::int64_t> sizes;
    std::int64_t total = 0;
    for (const char* module : family_.q_k_v) {
      const auto found = native_rows(layer, module, end);
      const std::string key = native_key(layer, module, end);
      if (!found) return problems_.add(where_, key + " is missing");
      if (!divides(key, *found, attention_.groups())) return;
      keys.push_back(key);
      sizes.push_back(*found);
      total += *found;
    }
    add(kQkv + end, layer, with_rows(query, total), grouped(keys, sizes, attention_.groups()));
  }

  void add_fc1(std::int64_t layer, const std::string& end, const Shape& gate) {
    const std::string key = native_key(layer, family_.gate, end);
    std::vector<RowBlock> blocks{{key, 0, 0, rows(gate)}};
    const auto up = native_rows(layer, family_.up, end);
    if (up) blocks.push_back({native_key(layer, family_.up, end), rows(gate), 0, *up});
    add(kFc1 + end, layer, with_rows(gate, rows(gate) + up.value_or(0)), std::move(blocks));
  }

  /// Without their number: as many rows of queries as of keys and of values.
  [[nodiscard]] bool is_one_group_per_head(std::int64_t layer, std::int64_t qkv_rows) const {
    if (attention_.heads > 0) return attention_.groups() == attention_.heads;
    const auto proj =
        shapes_.find(kLayers + std::to_string(layer) + ".self_attention.linear_proj.weight");
    return proj != shapes_.end() && proj->second.size() == 2 && qkv_rows == 3 * proj->second[1];
  }

  void split_qkv(std::int64_t layer, const std::string& end, const Shape& shape) {
    const std::string name = kLayers + std::to_string(layer) + "." + kQkv + end;
    if (family_.q_k_v.size() == 2 && is_one_group_per_head(layer, rows(shape)))
      return add(kQkv + end, layer, shape,
                 {{native_key(layer, kFusedQkv, end), 0, 0, rows(shape)}});
    if (!has_heads(name)) return;
    const std::int64_t groups = attention_.groups(), parts = attention_.heads + 2 * groups;
    if (!divides(name, rows(shape), parts)) return;
    const std::int64_t head = rows(shape) / parts;
    std::vector<std::string> keys;
    for (const char* module : family_.q_k_v) keys.push_back(native_key(layer, module, end));
    std::vector<std::int64_t> sizes{head * attention_.heads};
    if (keys.size() == 2) {
      sizes.push_back(2 * head * groups);
    } else {
      sizes.insert(sizes.end(), 2, head * groups);
    }
    add(kQkv + end, layer, shape, grouped(keys, sizes, groups));
  }

  void split_fc1(std::int64_t layer, const std::string& end, const Shape& shape) {
    const auto down = shapes_.find(kLayers + std::to_string(layer) + ".mlp.linear_fc2.weight");
    const bool is_gated =
        down != shapes_.end() && down->second.size() == 2 && rows(shape) == 2 * down->second[1];
    const std::string gate = native_key(layer, family_.gate, end);
    if (!is_gated) return add(kFc1 + end, layer, shape, {{gate, 0, 0, rows(shape)}});
    // One weight of both in the Megatron family, as NxDT has it.
    if (family_.q_k_v.size() == 2)
      return add(kFc1 + end, layer, shape, {{gate, 0, 0, rows(shape)}});
    const std::int64_t half = rows(shape) / 2;
    add(kFc1 + end, layer, shape,
        {{gate, 0, 0, half}, {native_key(layer, family_.up, end), half, 0, half}});
  }

  const Family& family_;
  const ShapeOf& shapes_;
  AttentionSizes attention_;
  std::string where_;
  Problems problems_;
  bool asked_ = false;
  std::vector<MegatronWeight> weights_;
};

bool is_llama_like(const ShapeOf& shapes) {
  if (shapes.contains("embedding.position_embeddings.weight") ||
      shapes.contains("decoder.final_layernorm.bias"))
    return false;
  const auto has_gate = [&](const std::string& path, std::size_t axes) {
    const auto fc1 = shapes.find("decoder.layers.0.mlp." + path + "linear_fc1.weight"),
               fc2 = shapes.find("decoder.layers.0.mlp." + path + "linear_fc2.weight");
    return fc1 != shapes.end() && fc2 != shapes.end() && fc1->second.size() == axes &&
           fc2->second.size() == axes && fc1->second[axes - 2] == 2 * fc2->second[axes - 1];
  };
  return has_gate("", 2) || has_gate("experts.experts.", 3);
}

}  // namespace

Box MegatronPlace::box(const Box& of_weight) const {
  Box box{lead, Shape(lead.size(), 1)};
  box.offset.insert(box.offset.end(), of_weight.offset.begin(), of_weight.offset.end());
  box.shape.insert(box.shape.end(), of_weight.shape.begin(), of_weight.shape.end());
  return box;
}

MegatronPlace place_of(const MegatronWeight& weight, const LayerAxis& axis) {
  if (weight.layer < 0) return {weight.key, weight.shape, {}};
  MegatronPlace place{axis.is_there ? kLayers + weight.key : key_with_layer(weight), {}, {}};
  const auto add = [&](std::int64_t index, std::int64_t size) {
    place.lead.push_back(index);
    place.shape.push_back(size);
  };
  if (axis.is_there) add(weight.layer, axis.layers);
  if (weight.expert >= 0) add(weight.expert, weight.experts);
  place.shape.insert(place.shape.end(), weight.shape.begin(), weight.shape.end());
  return place;
}

std::string key_with_layer(const MegatronWeight& weight) {
  return weight.layer < 0 ? weight.key : kLayers + std::to_string(weight.layer) + "." + weight.key;
}

LayerAxis axis_of(const std::vector<MegatronWeight>& weights) {
  std::map<std::int64_t, std::set<std::string>> keys;
  for (const MegatronWeight& weight : weights) {
    if (weight.layer >= 0) keys[weight.layer].insert(weight.key);
  }
  LayerAxis axis;
  for (const auto& [layer, of_layer] : keys) {
    axis.layers = layer + 1;
    axis.is_there = axis.is_there && of_layer == keys.begin()->second;
  }
  return axis;
}

std::vector<MegatronWeight> to_megatron(const ShapeOf& shapes, const AttentionSizes& attention,
                                        const std::string& where) {
  const bool is_gpt = std::any_of(shapes.begin(), shapes.end(), [](const auto& each) {
    return each.first.starts_with("language_model.");
  });
  Mapping mapping(is_gpt ? gpt() : llama(), shapes, attention, where);
  for (const auto& [key, shape] : shapes) mapping.add_native(key, shape);
  return mapping.take();
}

std::vector<MegatronWeight> from_megatron(const ShapeOf& shapes, const AttentionSizes& attention,
                                          const std::string& where) {
  Mapping mapping(is_llama_like(shapes) ? llama() : gpt(), shapes, attention, where);
  for (const auto& [key, shape] : shapes) mapping.add_megatron(key, shape);
  return mapping.take();
}

}  // namespace trellis::checkpoint::megatron
