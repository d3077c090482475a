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

void hf_has_only(SectionReader& reader, const char* key, bool legal, const char* llama_value) {
  if (legal || !reader.good({key})) return;
  reader.problem(key, fmt::format("`{}` belongs to model_source megatron; an hf model has {}", reader.raw(key), llama_value));
}

/// One of Megatron's choices that Llama has decided.
void check_hf_structure(SectionReader& reader, const ModelSection& section) {
  hf_has_only(reader, "normalization", section.normalization == Normalization::kRmsNorm, "rmsnorm");
  hf_has_only(reader, "activation", section.activation == Activation::kSwiglu, "swiglu");
  hf_has_only(reader, "transformer_block_type", section.transformer_block_type == TransformerBlock::kPreLn, "pre_ln");
  hf_has_only(reader, "position_embedding_type", section.position_embedding == PositionEmbedding::kRope, "rope");
  hf_has_only(reader, "has_bias", !section.has_bias, "no biases");
}

void read_dropouts(SectionReader& reader, bool hf, ModelSection& section) {
  section.hidden_dropout = reader.fraction("hidden_dropout", hf ? 0 : 0.1);
  section.attention_dropout = reader.fraction("attention_dropout", section.attention_dropout);
  section.ffn_dropout = reader.fraction("ffn_dropout", 0);
  for (const auto& [key, value] : {std::pair{"hidden_dropout", section.hidden_dropout}, std::pair{"attention_dropout", section.attention_dropout},
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

/// NxDT has one class for every Megatron model; a Megatron model that is Llama in all its parts is built like Llama.
std::string architecture_of(const ModelSection& section) {
  if (section.moe) return "mixtral";
  const bool llama = section.normalization == Normalization::kRmsNorm && section.activation == Activation::kSwiglu &&
                     section.transformer_block_type == TransformerBlock::kPreLn && section.position_embedding == PositionEmbedding::kRope &&
                     !section.has_bias;
  return llama ? "llama" : "gpt";
}

}  // namespace

void read_structure(SectionReader& reader, bool hf, ModelSection& section) {
  section.normalization = read_enum(reader, "normalization", hf ? Normalization::kRmsNorm : Normalization::kLayerNorm);
  section.activation = read_enum(reader, "activation", hf ? Activation::kSwiglu : Activation::kGelu);
  section.transformer_block_type = read_enum(reader, "transformer_block_type", TransformerBlock::kPreLn);
  section.position_embedding =
      read_enum(reader, "position_embedding_type", hf ? PositionEmbedding::kRope : PositionEmbedding::kLearnedAbsolute);
  section.has_bias = reader.get<bool>("has_bias", !hf);
  section.share_embeddings_and_output_weights =
      reader.get<bool>("share_embeddings_and_output_weights", hf ? section.share_embeddings_and_output_weights : true);
  section.use_scaled_init_method = reader.get<bool>("use_scaled_init_method", !hf);
  section.apply_query_key_layer_scaling = reader.get<bool>("apply_query_key_layer_scaling", !hf);
  section.fp32_residual_connection = reader.get<bool>("fp32_residual_connection", section.fp32_residual_connection);
  section.rotary_percentage = read_rotary_percentage(reader);
  read_dropouts(reader, hf, section);
  if (hf) check_hf_structure(reader, section);
  section.architecture = architecture_of(section);
}

}  // namespace trellis::trainer
