#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/model_section.h"

/// The families of models of the model hub: a file of plain data for each in this folder, and its
/// line in families.cpp. The YAML's and config.json's readers, checkpoints, import and export read
/// them.
namespace trellis::trainer {

/// Structure of a family of models, which a Megatron model chooses by its keys; the values here are
/// Llama's.
struct FamilyStructure {
  Normalization normalization = Normalization::kRmsNorm;
  Activation activation = Activation::kSwiglu;
  TransformerBlock block = TransformerBlock::kPreLn;
  PositionEmbedding positions = PositionEmbedding::kRope;
  bool has_bias = false, qkv_bias = false;
  bool qk_layernorm = false, qk_layernorm_across_heads = false;
  bool operator==(const FamilyStructure&) const = default;
};

/// Defaults of transformers' configuration class for keys that a config.json does not have.
struct FamilyDefaults {
  double rms_norm_eps = 1e-6, rope_theta = 1e4;
  int sliding_window = 0;  ///< 0: none
  int head_dim = 0;        ///< 0: hidden_size / num_attention_heads
};

struct ModelFamily {
  const char* type;            ///< model_type of config.json, and of the YAML
  const char* hub_class = "";  ///< of transformers; "": its weights have no names here
  bool in_yaml = true;         ///< false: what the YAML says follows from its other keys
  FamilyStructure structure = {};
  bool in_megatron = false;            ///< arguments of Megatron-LM say what is unlike Llama in it
  std::optional<bool> tied_head = {};  ///< none: config.json or the YAML says it
  bool experts = false;                ///< each layer is a mixture of experts
  bool windows = false;                ///< sliding_window is that of each layer
  FamilyDefaults defaults = {};
  // Keys of config.json next to those that all families have; several: separated by spaces.
  std::string_view read = "";       ///< change the model
  const char* off = nullptr;        ///< the one of them of which only false is supported
  std::string_view needs_off = "";  ///< say nothing, since `off` is false
};

[[nodiscard]] const std::vector<const ModelFamily*>& families();
/// Null: no family is called so.
[[nodiscard]] const ModelFamily* find_family(std::string_view type);
/// REQUIRES: there is one.
[[nodiscard]] const ModelFamily& family_of_type(std::string_view type);
/// The values of model_type of the families that satisfy `wanted`.
[[nodiscard]] std::vector<std::string> family_types(bool (*wanted)(const ModelFamily&));
/// True if the family's weights have names on the hub, so that its decoder can be exported.
[[nodiscard]] bool is_on_hub(const ModelFamily& family);

[[nodiscard]] FamilyStructure structure_of(const ModelSection& model);
void set_structure(const FamilyStructure& structure, ModelSection& model);
/// The first one of such a structure; null: there is none.
[[nodiscard]] const ModelFamily* family_with(const FamilyStructure& structure);
/// The family that a decoder is written to the hub as. Throws ConfigError when none has what it
/// has.
[[nodiscard]] const ModelFamily& hub_family(const ModelSection& model);

}  // namespace trellis::trainer
