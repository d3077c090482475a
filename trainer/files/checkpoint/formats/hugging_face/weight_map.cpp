#include "trainer/files/checkpoint/formats/hugging_face/weight_map.h"

#include "trainer/config/families/model_family.h"
#include "trainer/config/lora_targets.h"

namespace trellis::checkpoint::hugging_face {
namespace {

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

/// Axis of the native tensor along which the hub's `axis` lies: both count from the end, since a
/// native tensor may have an axis of experts before them.
std::size_t native_axis(const MapPiece& piece, std::size_t axis) {
  const std::size_t axes = piece.hub_box.shape.size();
  std::size_t from_end = axes - 1 - axis;
  if (piece.transposed && axes >= 2 && from_end < 2) from_end = 1 - from_end;
  return piece.native_box.shape.size() - 1 - from_end;
}

class Builder {
 public:
  /// The same bytes under another name.
  void same(const std::string& hub, const std::string& native, const Shape& shape) {
    add(hub, shape);
    map_.native.push_back({native, shape});
    piece(whole(shape), whole(shape), false);
  }
  /// A row per token.
  void table(const std::string& hub, const std::string& native, const Shape& shape) {
    same(hub, native, shape);
    map_.hub.back().is_table = map_.native.back().is_table = true;
  }
  /// Conv1D holds its matrix [in, out].
  void conv1d(const std::string& hub, const std::string& native, std::int64_t in,
              std::int64_t out) {
    add(hub, {in, out});
    map_.native.push_back({native, {out, in}});
    piece(whole({in, out}), whole({out, in}), true);
  }
  /// q|k|v along the last axis of the hub's tensor, [in, 3·h] or [3·h], to rows q|k|v of each head.
  void queries_keys_values(const std::string& hub, const std::string& native, std::int64_t in,
                           const HubConfig& config) {
    const std::int64_t d = config.head_dim, width = config.heads * d;
    const bool bias = in == 0;
    add(hub, bias ? Shape{3 * width} : Shape{in, 3 * width});
    map_.native.push_back({native, bias ? Shape{3 * width} : Shape{3 * width, in}});
    for (std::int64_t head = 0; head < config.heads; ++head) {
      for (std::int64_t part = 0; part < 3; ++part) {
        const std::int64_t there = part * width + head * d, here = (head * 3 + part) * d;
        if (bias) {
          piece({{there}, {d}}, {{here}, {d}}, false);
        } else {
          piece({{0, there}, {in, d}}, {{here, 0}, {d, in}}, true);
        }
      }
    }
  }
  /// A native tensor whose rows are those of the hub's matrices one after the other.
  std::size_t stacked(const std::string& native, const Shape& shape) {
    map_.native.push_back({native, shape});
    return map_.native.size() - 1;
  }
  void rows(const std::string& hub, const Shape& shape, std::size_t native, std::int64_t first) {
    add(hub, shape);
    map_.pieces.push_back({map_.hub.size() - 1, native, whole(shape), {{first, 0}, shape}, false});
  }
  WeightMap take() { return std::move(map_); }

 private:
  void add(const std::string& hub, const Shape& shape) { map_.hub.push_back({hub, shape}); }
  void piece(Box hub, Box native, bool transposed) {
    map_.pieces.push_back({map_.hub.size() - 1, map_.native.size() - 1, std::move(hub),
                           std::move(native), transposed});
  }
  WeightMap map_;
};

void add_experts(Builder& builder, const HubConfig& config, const std::string& hub,
                 const std::string& native) {
  const std::int64_t experts = config.experts, hidden = config.hidden, ffn = config.ffn;
  builder.same(hub + "gate.weight", native + "router.linear_router.weight", {experts, hidden});
  const std::string mlps = native + "expert_mlps.mlp_op.";
  const std::size_t up = builder.stacked(mlps + "gate_up_proj.weight", {experts * 2 * ffn, hidden});
  const std::size_t down = builder.stacked(mlps + "down_proj.weight", {experts * hidden, ffn});
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::string path = hub + "experts." + std::to_string(expert) + ".";
    builder.rows(path + "w1.weight", {ffn, hidden}, up, expert * 2 * ffn);
    builder.rows(path + "w2.weight", {hidden, ffn}, down, expert * hidden);
    builder.rows(path + "w3.weight", {ffn, hidden}, up, (expert * 2 + 1) * ffn);
  }
}

void add_llama_layer(Builder& builder, const HubConfig& config, const std::string& hub,
                     const std::string& native) {
  const trainer::FamilyStructure& has = trainer::family_of_type(config.model_type).structure;
  const std::int64_t hidden = config.hidden;
  const std::int64_t query = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  const auto same = [&](const std::string& name, const Shape& shape) {
    builder.same(hub + name, native + name, shape);
  };
  for (const auto& [name, rows] : {std::pair{"q", query}, {"k", kv}, {"v", kv}}) {
    const std::string projection = std::string("self_attn.") + name + "_proj";
    same(projection + ".weight", {rows, hidden});
    if (has.qkv_bias) same(projection + ".bias", {rows});
  }
  same("self_attn.o_proj.weight", {hidden, query});
  if (has.qk_layernorm) {
    same("self_attn.q_norm.weight", {has.qk_layernorm_across_heads ? query : config.head_dim});
    same("self_attn.k_norm.weight", {has.qk_layernorm_across_heads ? kv : config.head_dim});
  }
  if (config.experts > 0) {
    add_experts(builder, config, hub + "block_sparse_moe.", native + "mlp.");
  } else {
    same("mlp.gate_proj.weight", {config.ffn, hidden});
    same("mlp.up_proj.weight", {config.ffn, hidden});
    same("mlp.down_proj.weight", {hidden, config.ffn});
  }
  const trainer::LayerNormNames norms = trainer::layer_norm_names(has.block);
  for (const char* norm : {norms.attention, norms.mlp})
    same(std::string(norm) + ".weight", {hidden});
}

WeightMap llama_map(const HubConfig& config, const std::string& prefix, bool head) {
  Builder builder;
  const Shape table{config.vocabulary, config.hidden};
  builder.table(prefix + "embed_tokens.weight", "model.embed_tokens.weight", table);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string path = "layers." + std::to_string(layer) + ".";
    add_llama_layer(builder, config, prefix + path, "model." + path);
  }
  builder.same(prefix + "norm.weight", "model.norm.weight", {config.hidden});
  if (head) builder.table(kHead, "lm_head.weight", table);
  return builder.take();
}

void add_gpt2_layer(Builder& builder, const HubConfig& config, const std::string& hub,
                    const std::string& native) {
  const std::int64_t hidden = config.hidden, ffn = config.ffn;
  const auto norm = [&](const std::string& there, const std::string& here) {
    for (const char* kind : {".weight", ".bias"})
      builder.same(hub + there + kind, native + here + kind, {hidden});
  };
  const auto linear = [&](const std::string& there, const std::string& here, std::int64_t in,
                          std::int64_t out) {
    builder.conv1d(hub + there + ".weight", native + here + ".weight", in, out);
    builder.same(hub + there + ".bias", native + here + ".bias", {out});
  };
  norm("ln_1", "input_layernorm");
  const std::string qkv = native + "self_attention.query_key_value";
  builder.queries_keys_values(hub + "attn.c_attn.weight", qkv + ".weight", hidden, config);
  builder.queries_keys_values(hub + "attn.c_attn.bias", qkv + ".bias", 0, config);
  linear("attn.c_proj", "self_attention.dense", hidden, hidden);
  norm("ln_2", "post_attention_layernorm");
  linear("mlp.c_fc", "mlp.dense_h_to_4h", hidden, ffn);
  linear("mlp.c_proj", "mlp.dense_4h_to_h", ffn, hidden);
}

WeightMap gpt2_map(const HubConfig& config, const std::string& prefix, bool head) {
  Builder builder;
  const Shape table{config.vocabulary, config.hidden};
  const std::string embedding = "language_model.embedding.", encoder = "language_model.encoder.";
  builder.table(prefix + "wte.weight", embedding + "word_embeddings.weight", table);
  builder.same(prefix + "wpe.weight", embedding + "position_embeddings.weight",
               {config.positions, config.hidden});
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    add_gpt2_layer(builder, config, prefix + "h." + std::to_string(layer) + ".",
                   encoder + "layers." + std::to_string(layer) + ".");
  for (const char* kind : {".weight", ".bias"})
    builder.same(prefix + "ln_f" + kind, encoder + "final_layernorm" + kind, {config.hidden});
  if (head) builder.table(kHead, "language_model.output_layer.weight", table);
  return builder.take();
}

}  // namespace

PiecePart part_in_native(const MapPiece& piece, const Box& native) {
  PiecePart part{piece.hub_box, intersection(piece.native_box, native)};
  for (std::size_t axis = 0; axis < part.hub.shape.size(); ++axis) {
    const std::size_t there = native_axis(piece, axis);
    part.hub.offset[axis] += part.native.offset[there] - piece.native_box.offset[there];
    part.hub.shape[axis] = part.native.shape[there];
  }
  return part;
}

PiecePart part_in_hub(const MapPiece& piece, const Box& hub) {
  PiecePart part{intersection(piece.hub_box, hub), piece.native_box};
  for (std::size_t axis = 0; axis < part.hub.shape.size(); ++axis) {
    const std::size_t there = native_axis(piece, axis);
    part.native.offset[there] += part.hub.offset[axis] - piece.hub_box.offset[axis];
    part.native.shape[there] = part.hub.shape[axis];
  }
  return part;
}

WeightMap weight_map(const HubConfig& config, const std::string& prefix, bool with_head) {
  const bool head = with_head || !config.tied_embeddings;
  return config.model_type == "gpt2" ? gpt2_map(config, prefix, head)
                                     : llama_map(config, prefix, head);
}

std::string base_prefix(const HubConfig& config) {
  return config.model_type == "gpt2" ? "transformer." : "model.";
}

std::string embedding_name(const HubConfig& config, const std::string& prefix) {
  return prefix + (config.model_type == "gpt2" ? "wte.weight" : "embed_tokens.weight");
}

}  // namespace trellis::checkpoint::hugging_face
