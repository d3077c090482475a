#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "trainer/config/families/bert.h"
#include "trainer/config/families/llama.h"
#include "trainer/config/families/mistral.h"
#include "trainer/config/families/mixtral.h"
#include "trainer/config/families/olmo2.h"
#include "trainer/config/families/qwen2.h"
#include "trainer/config/families/qwen3.h"
#include "trainer/config/families/vit.h"
#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

/// Keys of section `model` by which a decoder's structure is not Llama's.
std::vector<std::string> keys_unlike_llama(const FamilyStructure& structure) {
  const FamilyStructure llama;
  std::vector<std::string> keys;
  const auto add = [&](const char* key, bool alike) {
    if (!alike) keys.emplace_back(key);
  };
  add("qk_layernorm", structure.qk_layernorm == llama.qk_layernorm);
  add("qk_layernorm_across_heads",
      structure.qk_layernorm_across_heads == llama.qk_layernorm_across_heads);
  add("qkv_bias", structure.qkv_bias == llama.qkv_bias);
  add("transformer_block_type", structure.block == llama.block);
  add("has_bias", structure.has_bias == llama.has_bias);
  add("position_embedding_type", structure.positions == llama.positions);
  add("normalization", structure.normalization == llama.normalization);
  add("activation", structure.activation == llama.activation);
  return keys;
}

}  // namespace

/// A window or experts are found by the first of several families with one structure.
const std::vector<const ModelFamily*>& families() {
  static const std::vector<const ModelFamily*> all = {
      &kLlamaFamily, &kMistralFamily, &kMixtralFamily, &kQwen2Family,
      &kQwen3Family, &kOlmo2Family,   &kBertFamily,    &kVitFamily};
  return all;
}

const ModelFamily* find_family(std::string_view type) {
  const auto found = std::ranges::find_if(
      families(), [&](const ModelFamily* family) { return family->type == type; });
  return found == families().end() ? nullptr : *found;
}

const ModelFamily& family_of_type(std::string_view type) {
  const ModelFamily* family = find_family(type);
  TRELLIS_CHECK(family != nullptr, "no family of this type");
  return *family;
}

std::vector<std::string> family_types(bool (*wanted)(const ModelFamily&)) {
  std::vector<std::string> types;
  for (const ModelFamily* family : families())
    if (wanted(*family)) types.emplace_back(family->type);
  return types;
}

bool is_on_hub(const ModelFamily& family) { return *family.hub_class != '\0'; }

FamilyStructure structure_of(const ModelSection& model) {
  return {.normalization = model.normalization,
          .activation = model.activation,
          .block = model.transformer_block_type,
          .positions = model.position_embedding,
          .has_bias = model.has_bias,
          .qkv_bias = model.qkv_bias,
          .qk_layernorm = model.qk_layernorm,
          .qk_layernorm_across_heads = model.qk_layernorm_across_heads};
}

void set_structure(const FamilyStructure& structure, ModelSection& model) {
  model.normalization = structure.normalization;
  model.activation = structure.activation;
  model.transformer_block_type = structure.block;
  model.position_embedding = structure.positions;
  model.has_bias = structure.has_bias;
  model.qkv_bias = structure.qkv_bias;
  model.qk_layernorm = structure.qk_layernorm;
  model.qk_layernorm_across_heads = structure.qk_layernorm_across_heads;
}

const ModelFamily* family_with(const FamilyStructure& structure) {
  const auto found = std::ranges::find_if(
      families(), [&](const ModelFamily* family) { return family->structure == structure; });
  return found == families().end() ? nullptr : *found;
}

const ModelFamily& hub_family(const ModelSection& model) {
  const FamilyStructure structure = structure_of(model);
  for (const ModelFamily* family : families()) {
    if (is_on_hub(*family) && family->structure == structure &&
        family->experts == model.moe.has_value() && (family->windows || !model.sliding_window))
      return *family;
  }
  const std::vector<std::string> keys = keys_unlike_llama(structure);
  if (const ModelFamily* family = family_with(structure); family != nullptr && !keys.empty())
    throw ConfigError(fmt::format(
        "model.{}: no family of Hugging Face here has it with experts or with a window in each "
        "layer; {} expects neither",
        keys.front(), family->type));
  throw ConfigError(fmt::format(
      "model.{}: no family of Hugging Face here has this choice of {}; expected one of {}",
      keys.front(), fmt::join(keys, ", "), join_names(family_types(&is_on_hub))));
}

}  // namespace trellis::trainer
