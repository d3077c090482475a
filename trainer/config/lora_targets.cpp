#include "trainer/config/lora_targets.h"

#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

/// Without the layers' path; `alias` as in NamedModule.
struct LayerModule {
  std::string path, alias;
  bool linear = true;
};

using LayerModules = std::vector<LayerModule>;

/// Stacked experts have no LoRA version in NxD; those that all tokens visit are an MLP.
LayerModules llama_mlp(const ModelSection& model, const std::string& path) {
  LayerModules mlp = {{path + "down_proj", "down_proj"}};
  if (model.fuse_gate_up) {
    mlp.push_back({path + "gate_up_proj", "gate_up_proj"});
  } else {
    mlp.push_back({path + "gate_proj", "gate_up_proj"});
    mlp.push_back({path + "up_proj", "gate_up_proj"});
  }
  return mlp;
}

LayerModules megatron_mlp(const ModelSection& model, const std::string& path) {
  LayerModules mlp = {{path + "dense_h_to_4h", "gate_up_proj"},
                      {path + "dense_4h_to_h", "down_proj"}};
  if (is_gated(model.activation) && !model.fuse_gate_up)
    mlp.push_back({path + "dense_h_to_4h_2", "gate_up_proj"});
  return mlp;
}

LayerModules mlp_of(const ModelSection& model, bool megatron, int layer) {
  const auto make = megatron ? megatron_mlp : llama_mlp;
  if (!is_moe_layer(model, layer)) return make(model, "mlp.");
  LayerModules mlp = {{"mlp.router.linear_router", "", false},
                      {"mlp.expert_mlps.mlp_op.gate_up_proj", "gate_up_proj", false},
                      {"mlp.expert_mlps.mlp_op.down_proj", "down_proj", false}};
  if (model.moe->num_shared_experts > 0) {
    for (LayerModule& module : make(model, "mlp.shared_experts.")) mlp.push_back(module);
  }
  return mlp;
}

LayerModules llama_attention(const ModelSection& model) {
  if (model.qkv_linear) return {{"self_attn.o_proj", "o_proj"}, {"self_attn.qkv_proj", "qkv_proj"}};
  return {{"self_attn.o_proj", "o_proj"},
          {"self_attn.q_proj", "qkv_proj"},
          {"self_attn.k_proj", "qkv_proj"},
          {"self_attn.v_proj", "qkv_proj"}};
}

LayerModules megatron_attention(const ModelSection& model) {
  LayerModules attention = {{"self_attention.dense", "o_proj"}};
  if (model.qkv_linear) {
    attention.push_back({"self_attention.qkv_proj", "qkv_proj"});
  } else if (model.num_kv_heads == model.num_attention_heads) {
    attention.push_back({"self_attention.query_key_value", "qkv_proj"});
  } else {
    attention.push_back({"self_attention.query", "qkv_proj"});
    attention.push_back({"self_attention.key_value", "qkv_proj"});
  }
  return attention;
}

LayerModules modules_of(const ModelSection& model, bool megatron, int layer) {
  LayerModules all = megatron ? megatron_attention(model) : llama_attention(model);
  for (LayerModule& module : mlp_of(model, megatron, layer)) all.push_back(module);
  const LayerNormNames norms = layer_norm_names(model.transformer_block_type);
  all.push_back({norms.attention, "", false});
  all.push_back({norms.mlp, "", false});
  if (megatron && model.transformer_block_type == TransformerBlock::kNormformer) {
    all.push_back({"post_attention_normformer_norm", "", false});
    all.push_back({"mlp.normalization", "", false});
  }
  return all;
}

/// True for Megatron's GPT, and for its mixtures with learned positions: see make_pipeline_stage().
bool has_megatron_names(const ModelSection& model) {
  return model.architecture == "gpt" ||
         (model.architecture == "mixtral" && model.position_embedding != PositionEmbedding::kRope);
}

/// Names without what differs from layer to layer, each once: "o_proj, qkv_proj".
std::string ends_of(const std::vector<NamedModule>& modules, bool only_linear) {
  std::vector<std::string> ends;
  for (const NamedModule& module : modules) {
    if (!module.linear && only_linear) continue;
    ends.push_back(module.path.substr(module.path.rfind('.') + 1));
  }
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return join_names(ends);
}

}  // namespace

LayerNormNames layer_norm_names(TransformerBlock block) {
  if (block == TransformerBlock::kReorderedNorm)
    return {"post_attention_layernorm", "post_feedforward_layernorm"};
  return {"input_layernorm", "post_attention_layernorm"};
}

std::vector<NamedModule> modules_of(const ModelSection& model) {
  const bool megatron = has_megatron_names(model);
  const std::string front = megatron ? "language_model.encoder." : "model.";
  std::vector<NamedModule> modules;
  modules.push_back(
      {megatron ? "language_model.embedding.word_embeddings" : "model.embed_tokens", ""});
  if (megatron && model.position_embedding == PositionEmbedding::kLearnedAbsolute)
    modules.push_back({"language_model.embedding.position_embeddings", "", false});
  for (int i = 0; i < model.num_layers; ++i) {
    for (const LayerModule& module : modules_of(model, megatron, i))
      modules.push_back(
          {fmt::format("{}layers.{}.{}", front, i, module.path), module.alias, module.linear, i});
  }
  if (model.transformer_block_type != TransformerBlock::kPostLn)
    modules.push_back({front + (megatron ? "final_layernorm" : "norm"), "", false});
  if (!model.share_embeddings_and_output_weights)
    modules.push_back({megatron ? "language_model.output_layer" : "lm_head", ""});
  return modules;
}

bool names_module(const std::string& entry, const std::string& path) {
  return path == entry || path.ends_with("." + entry);
}

bool LoraSection::targets_module(const std::string& path, const std::string& alias) const {
  if (!target_regex.empty()) return std::regex_match(path, std::regex(target_regex));
  return std::ranges::any_of(targets, [&](const std::string& entry) {
    return names_module(entry, path) || (!alias.empty() && entry == alias);
  });
}

bool LoraSection::saves_module(const std::string& path) const {
  return std::ranges::any_of(modules_to_save,
                             [&](const std::string& entry) { return names_module(entry, path); });
}

std::vector<std::string> default_lora_targets(const ModelSection& model) {
  if (has_megatron_names(model) || model.qkv_linear) return {"qkv_proj"};
  return {"q_proj", "v_proj"};  // of llama, mistral and mixtral
}

std::string why_no_targets(const ModelSection& model) {
  const auto modules = modules_of(model);
  const auto any = [&](const LoraSection& lora) {
    return std::ranges::any_of(modules, [&](const NamedModule& module) {
      return module.linear && lora.targets_module(module.path, module.alias);
    });
  };
  const std::string expected = ends_of(modules, /*only_linear=*/true);
  for (const NamedModule& module : modules) {
    if (!module.linear && model.lora->targets_module(module.path, module.alias))
      return fmt::format(
          "{} takes no adapter{}; expected some of {}", module.path,
          module.path.find(".expert_mlps.") != std::string::npos
              ? ": experts are stacked in one weight, for which NxD has no LoRA layer"
              : "",
          expected);
  }
  if (!model.lora->target_regex.empty())
    return any(*model.lora) ? ""
                            : fmt::format(
                                  "no whole path of a module matches `{}`; expected a "
                                  "pattern such as .*\\.(q_proj|v_proj) for some of {}",
                                  model.lora->target_regex, expected);
  for (const std::string& entry : model.lora->targets) {
    LoraSection one = *model.lora;
    one.targets = {entry};
    if (!any(one))
      return fmt::format("`{}` names no module of this model; expected some of {}", entry,
                         expected);
  }
  return "";
}

std::string why_not_saved(const ModelSection& model) {
  const auto modules = modules_of(model);
  for (const std::string& entry : model.lora->modules_to_save) {
    const bool found = std::ranges::any_of(
        modules, [&](const NamedModule& module) { return names_module(entry, module.path); });
    if (!found)
      return fmt::format("`{}` names no module of this model; expected some of {}", entry,
                         ends_of(modules, /*only_linear=*/false));
  }
  for (const NamedModule& module : modules) {
    if (model.lora->saves_module(module.path) &&
        model.lora->targets_module(module.path, module.alias))
      return fmt::format("{} is in target_modules too: it is trained as a whole, or by an adapter",
                         module.path);
  }
  return "";
}

}  // namespace trellis::trainer
