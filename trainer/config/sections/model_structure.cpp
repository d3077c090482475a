#include <utility>

#include <fmt/format.h>

#include "trainer/config/families/model_family.h"
#include "trainer/config/names.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/model_readers.h"

namespace trellis::trainer {
namespace {

template <typename Enum>
void choice(Fields& fields, const char* key, Enum& value) {
  std::vector<std::string> legal;
  for (const auto& entry : names_of<Enum>()) legal.push_back(entry.first);
  std::string name = name_of(value);
  fields.one_of(key, name, legal);
  for (const auto& entry : names_of<Enum>())
    if (entry.first == name) value = entry.second;
}

/// A family's choices, with whether its head reads the embedding.
struct Structure : FamilyStructure {
  bool tied = false;
};

/// `section`: of an hf model it is what the family has decided.
Structure structure_of_family(bool hf, const ModelSection& section) {
  if (hf) return {structure_of(section), section.share_embeddings_and_output_weights};
  return {{.normalization = Normalization::kLayerNorm,
           .activation = Activation::kGelu,
           .positions = PositionEmbedding::kLearnedAbsolute,
           .has_bias = true},
          /*tied=*/true};
}

/// "no norms of queries and keys, unless model_type is qwen3"
std::string unless_families(const char* without, bool (*have)(const ModelFamily&)) {
  return fmt::format("{}, unless model_type is {}", without, join_names(family_types(have)));
}

/// One of Megatron's choices that the family of an hf model has decided.
void check_hf_structure(SectionReader& reader, const ModelSection& section,
                        const Structure& family) {
  const std::string model = is_encoder(section) ? "a " + section.architecture : "an hf";
  const auto has_only = [&](const char* key, bool legal, const std::string& value) {
    if (legal || !reader.good({key})) return;
    reader.problem(key, fmt::format("`{}` belongs to model_source megatron; {} model has {}",
                                    reader.raw(key), model, value));
  };
  has_only("normalization", section.normalization == family.normalization,
           name_of(family.normalization));
  has_only("activation", section.activation == family.activation, name_of(family.activation));
  has_only("transformer_block_type", section.transformer_block_type == family.block,
           name_of(family.block));
  has_only("position_embedding_type", section.position_embedding == family.positions,
           name_of(family.positions));
  has_only("has_bias", section.has_bias == family.has_bias,
           family.has_bias ? "biases" : "no biases");
  has_only("qk_layernorm", section.qk_layernorm == family.qk_layernorm,
           family.qk_layernorm
               ? "norms of queries and keys"
               : unless_families("no norms of queries and keys",
                                 [](const ModelFamily& f) { return f.structure.qk_layernorm; }));
  has_only("qk_layernorm_across_heads",
           section.qk_layernorm_across_heads == family.qk_layernorm_across_heads,
           family.qk_layernorm_across_heads
               ? "norms across heads"
               : unless_families("no norms across heads", [](const ModelFamily& f) {
                   return f.structure.qk_layernorm_across_heads;
                 }));
  has_only("qkv_bias", section.qkv_bias == family.qkv_bias,
           family.qkv_bias
               ? "biases of queries, keys and values"
               : unless_families("no biases of queries, keys and values",
                                 [](const ModelFamily& f) { return f.structure.qkv_bias; }));
  if (!is_encoder(section)) return;
  has_only("share_embeddings_and_output_weights",
           section.share_embeddings_and_output_weights == family.tied,
           family.tied ? "a head that reads the embedding" : "a separate head");
  has_only("num_kv_heads", section.num_kv_heads == section.num_attention_heads,
           "a key/value head per query head");
  has_only("sliding_window_size", !section.sliding_window, "no window");
}

void dropout_fields(Fields& fields, ModelSection& s) {
  const auto field = [&](const char* key, double& value) {
    fields.fraction(key, value);
    fields.rule([&](SectionReader& r) {
      if (value == 1) r.problem(key, "1 drops everything; it must be smaller than 1");
    });
  };
  field("hidden_dropout", s.hidden_dropout);
  field("attention_dropout", s.attention_dropout);
  field("ffn_dropout", s.ffn_dropout);
}

void check_dbrx_choices(SectionReader& reader, bool hf, const ModelSection& s) {
  if (s.clip_qkv && *s.clip_qkv <= 0)
    reader.problem("clip_qkv", fmt::format("must be greater than 0, got {}", *s.clip_qkv));
  for (const char* key : {"layernorm_bias", "clip_qkv"}) {
    if (hf && reader.has_value(key))
      reader.problem(key, "belongs to model_source megatron: no hf model here has it; remove it");
  }
  if (!s.layernorm_bias && s.normalization == Normalization::kRmsNorm)
    reader.problem("layernorm_bias",
                   "false is of layer norms: expected normalization layernorm or layernorm1p, got "
                   "rmsnorm, which has none; remove it");
}

/// Fields that Databricks' DBRX has and NxDT's Megatron models do not: layer norms without a bias,
/// and config.json's attn_config.clip_qkv.
void dbrx_fields(Fields& fields, ModelSection& s, bool hf) {
  fields.own().form(
      "layernorm_bias",
      [&](SectionReader& r) { s.layernorm_bias = r.get<bool>("layernorm_bias", s.layernorm_bias); },
      [&](YamlWriter& out) {
        if (!s.layernorm_bias) out.boolean("layernorm_bias", false);
      });
  fields.own().form(
      "clip_qkv", [&](SectionReader& r) { s.clip_qkv = r.optional<double>("clip_qkv"); },
      [&](YamlWriter& out) {
        if (s.clip_qkv) out.number("clip_qkv", *s.clip_qkv);
      });
  fields.rule([&](SectionReader& r) { check_dbrx_choices(r, hf, s); });
}

void adopt(const Structure& family, ModelSection& s) {
  set_structure(family, s);
  s.share_embeddings_and_output_weights = family.tied;
}

}  // namespace

void structure_fields(Fields& fields, ModelSection& s, bool hf) {
  const Structure family = structure_of_family(hf, s);
  fields.rule([&](SectionReader&) { adopt(family, s); });
  choice(fields, "normalization", s.normalization);
  choice(fields, "activation", s.activation);
  choice(fields, "transformer_block_type", s.transformer_block_type);
  choice(fields, "position_embedding_type", s.position_embedding);
  fields.boolean("has_bias", s.has_bias);
  fields.boolean("share_embeddings_and_output_weights", s.share_embeddings_and_output_weights);
  dropout_fields(fields, s);
  fields.boolean("apply_query_key_layer_scaling", s.apply_query_key_layer_scaling);
  fields.boolean("fp32_residual_connection", s.fp32_residual_connection);
  const auto flag = [&](const char* key, bool& value) {
    fields.own().form(
        key, [&](SectionReader& r) { value = r.get<bool>(key, value); },
        [&](YamlWriter& out) {
          if (value) out.boolean(key, true);
        });
  };
  flag("qk_layernorm", s.qk_layernorm);  // Megatron-LM's --qk-layernorm, and NeMo's key
  flag("qk_layernorm_across_heads", s.qk_layernorm_across_heads);
  flag("qkv_bias", s.qkv_bias);  // Megatron-LM's --add-qkv-bias, and NeMo's key
  fields.rule([&](SectionReader&) { s.qkv_bias = s.qkv_bias && !s.has_bias; });
  dbrx_fields(fields, s, hf);
  fields.rule([&](SectionReader& r) {
    if (hf) check_hf_structure(r, s, family);
  });
}

std::string architecture_of(const ModelSection& section) {
  if (is_encoder(section)) return section.architecture;
  if (section.moe) return "mixtral";
  const TransformerBlock block = section.transformer_block_type;
  const bool llama =
      section.normalization == Normalization::kRmsNorm &&
      section.activation == Activation::kSwiglu &&
      (block == TransformerBlock::kPreLn || block == TransformerBlock::kReorderedNorm) &&
      section.position_embedding == PositionEmbedding::kRope && !section.has_bias;
  return llama ? "llama" : "gpt";
}

}  // namespace trellis::trainer
