#pragma once

#include <string>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// Names of a layer's two norms, that of attention and that of the MLP.
struct LayerNormNames {
  const char *attention, *mlp;
};
[[nodiscard]] LayerNormNames layer_norm_names(TransformerBlock block);

/// A module of a decoder that has weights, whatever stage it is on.
struct NamedModule {
  std::string path;    ///< "model.layers.0.self_attn.q_proj"
  std::string alias;   ///< NxDT's name of such a layer in every model, "qkv_proj"; "": it has none
  bool linear = true;  ///< false: takes no adapter: norms, learned positions, routers, experts
  int layer = -1;      ///< −1: of none
};
[[nodiscard]] std::vector<NamedModule> modules_of(const ModelSection& model);

/// True if `entry` names the module: by its whole path, or by the end of the path from a '.' on.
[[nodiscard]] bool names_module(const std::string& entry, const std::string& path);

/// NxD's choice for a kind of model when target_modules is null.
[[nodiscard]] std::vector<std::string> default_lora_targets(const ModelSection& model);

/// The problem with target_modules or, for why_not_saved(), with modules_to_save; "" when each
/// entry finds a module.
[[nodiscard]] std::string why_no_targets(const ModelSection& model);
[[nodiscard]] std::string why_not_saved(const ModelSection& model);

}  // namespace trellis::trainer
