#include <utility>

#include <fmt/format.h>

#include "trainer/config/model_readers.h"
#include "trainer/config/names.h"

namespace trellis::trainer {
namespace {

template <typename Enum>
Enum read_enum(SectionReader& reader, const std::string& key, Enum default_value) {
  std::vector<std::string> legal;
  for (const auto& entry : names_of<Enum>()) legal.push_back(entry.first);
  const std::string text = reader.one_of(key, name_of(default_value), legal);
  for (const auto& [name, value] : names_of<Enum>()) {
    if (name == text) return value;
  }
  return default_value;
}

/// Megatron's choices as a family of models has decided them.
struct Structure {
  Normalization normalization = Normalization::kRmsNorm;
  Activation activation = Activation::kSwiglu;
  TransformerBlock block = TransformerBlock::kPreLn;
  PositionEmbedding positions = PositionEmbedding::kRope;
  bool has_bias = false, tied = false, qk_layernorm = false;
};

/// `section`: its architecture, whether its head is tied and whether it is Qwen3 are known.
Structure family_structure(bool hf, const ModelSection& section) {
  const auto absolute = PositionEmbedding::kLearnedAbsolute;
  if (!hf)
    return {Normalization::kLayerNorm,
            Activation::kGelu,
            TransformerBlock::kPreLn,
            absolute,
            true,
            true};
  if (section.architecture == "bert")
    return {Normalization::kLayerNorm,
            Activation::kGelu,
            TransformerBlock::kPostLn,
            absolute,
            true,
            true};
  if (section.architecture == "vit")
    return {Normalization::kLayerNorm,
            Activation::kGelu,
            TransformerBlock::kPreLn,
            absolute,
            true,
            false};
  return {.tied = section.share_embeddings_and_output_weights,
          .qk_layernorm = section.qk_layernorm};
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
           family.qk_layernorm ? "norms of queries and keys"
                               : "no norms of queries and keys, unless model_type is qwen3");
  if (!is_encoder(section)) return;
  has_only("share_embeddings_and_output_weights",
           section.share_embeddings_and_output_weights == family.tied,
           family.tied ? "a head that reads the embedding" : "a separate head");
  has_only("num_kv_heads", section.num_kv_heads == section.num_attention_heads,
           "a key/value head per query head");
  has_only("sliding_window_size", !section.sliding_window, "no window");
}

void read_dropouts(SectionReader& reader, ModelSection& section) {
  section.hidden_dropout = reader.fraction("hidden_dropout", section.hidden_dropout);
  section.attention_dropout = reader.fraction("attention_dropout", section.attention_dropout);
  section.ffn_dropout = reader.fraction("ffn_dropout", 0);
  for (const auto& [key, value] : {std::pair{"hidden_dropout", section.hidden_dropout},
                                   std::pair{"attention_dropout", section.attention_dropout},
                                   std::pair{"ffn_dropout", section.ffn_dropout}}) {
    if (value == 1) reader.problem(key, "1 drops everything; it must be smaller than 1");
  }
}

double read_rotary_percentage(SectionReader& reader) {
  const double share = reader.get<double>("rotary_percentage", 1.0);
  if (share > 0 && share <= 1) return share;
  reader.problem("rotary_percentage", fmt::format("must be in (0, 1], got {}", share));
  return 1;
}

/// What Databricks' DBRX has and NxDT's Megatron models do not.
void read_dbrx_choices(SectionReader& reader, bool hf, ModelSection& section) {
  section.layernorm_bias = reader.get<bool>("layernorm_bias", section.layernorm_bias);
  section.clip_qkv = reader.optional<double>("clip_qkv");
  if (section.clip_qkv && *section.clip_qkv <= 0)
    reader.problem("clip_qkv", fmt::format("must be greater than 0, got {}", *section.clip_qkv));
  for (const char* key : {"layernorm_bias", "clip_qkv"}) {
    if (hf && reader.has_value(key))
      reader.problem(key, "belongs to model_source megatron: no hf model here has it; remove it");
  }
  if (!section.layernorm_bias && section.normalization == Normalization::kRmsNorm)
    reader.problem("layernorm_bias",
                   "false is of layer norms: expected normalization layernorm or layernorm1p, got "
                   "rmsnorm, which has none; remove it");
}

/// NxDT has one class for every Megatron model; a Megatron model that is Llama in all its parts is
/// built like Llama.
std::string architecture_of(const ModelSection& section) {
  if (section.moe) return "mixtral";
  const bool llama = section.normalization == Normalization::kRmsNorm &&
                     section.activation == Activation::kSwiglu &&
                     section.transformer_block_type == TransformerBlock::kPreLn &&
                     section.position_embedding == PositionEmbedding::kRope && !section.has_bias;
  return llama ? "llama" : "gpt";
}

}  // namespace

void read_structure(SectionReader& reader, bool hf, ModelSection& section) {
  const Structure family = family_structure(hf, section);
  section.normalization = read_enum(reader, "normalization", family.normalization);
  section.activation = read_enum(reader, "activation", family.activation);
  section.transformer_block_type = read_enum(reader, "transformer_block_type", family.block);
  section.position_embedding = read_enum(reader, "position_embedding_type", family.positions);
  section.qk_layernorm = reader.get<bool>("qk_layernorm", family.qk_layernorm);
  section.has_bias = reader.get<bool>("has_bias", family.has_bias);
  read_dbrx_choices(reader, hf, section);
  section.share_embeddings_and_output_weights =
      reader.get<bool>("share_embeddings_and_output_weights", family.tied);
  section.use_scaled_init_method = reader.get<bool>("use_scaled_init_method", !hf);
  section.apply_query_key_layer_scaling = reader.get<bool>("apply_query_key_layer_scaling", !hf);
  section.fp32_residual_connection =
      reader.get<bool>("fp32_residual_connection", section.fp32_residual_connection);
  section.rotary_percentage = read_rotary_percentage(reader);
  read_dropouts(reader, section);
  if (hf) check_hf_structure(reader, section, family);
  if (!is_encoder(section)) section.architecture = architecture_of(section);
}

}  // namespace trellis::trainer
