#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "trainer/config/fields.h"
#include "trainer/config/hf_model_config.h"
#include "trainer/config/model_readers.h"
#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

constexpr double kDefaultRopeTheta = 10000;
constexpr int kMostLayers =
    1024;  ///< the deepest published Transformer has 1,000 (DeepNet, arXiv:2203.00555)

/// The YAML's value overrides config.json's; one of them must be there.
int read_size(SectionReader& reader, const std::string& key, const std::optional<int>& from_json) {
  return from_json ? reader.positive(key, *from_json) : reader.required_positive(key);
}

/// Relative paths start at the YAML's directory, or else at the current one.
HfModelConfig read_model_config(SectionReader& reader, const ModelSurroundings& surroundings) {
  const auto name = reader.optional<std::string>("model_config");
  if (!name) return {};
  if (!surroundings.hf) {
    reader.problem("model_config",
                   "belongs to model_source hf; with model_source megatron write the sizes in "
                   "section `model`");
    return {};
  }
  std::filesystem::path file = *name;
  std::error_code error;
  if (file.is_relative() && std::filesystem::exists(surroundings.directory / file, error))
    file = surroundings.directory / file;
  return read_hf_model_config(file.lexically_normal(), reader, "model_config");
}

/// kv_channels, config.json's head_dim, or hidden_size / heads. config.json's holds for
/// config.json's sizes only: a smaller hidden_size in the YAML makes smaller heads.
int read_head_dim(SectionReader& reader, const ModelSection& section,
                  const HfModelConfig& published) {
  if (const auto channels = reader.optional_positive("kv_channels")) return *channels;
  const int derived = section.hidden_size / std::max(1, section.num_attention_heads);
  if (!published.head_dim) return derived;
  const bool follows_sizes =
      published.hidden_size && published.num_attention_heads &&
      *published.head_dim == *published.hidden_size / *published.num_attention_heads;
  return follows_sizes ? derived : *published.head_dim;
}

/// An image has a token per patch, and one for its class.
ImageSection read_image(SectionReader& reader, const HfModelConfig& published) {
  ImageSection image;
  image.size = reader.positive("image_size", published.image_size.value_or(image.size));
  image.patch = reader.positive("patch_size", published.patch_size.value_or(image.patch));
  image.channels = reader.positive("num_channels", published.num_channels.value_or(image.channels));
  image.labels = reader.positive("num_labels", published.num_labels.value_or(image.labels));
  if (image.size % image.patch != 0) {
    reader.problem("image_size",
                   fmt::format("{} is not divisible by patch_size {}", image.size, image.patch));
    image.size = image.patch;
  }
  constexpr int kMostPatches = 1 << 15;  // along a side: their number fits an int
  if (image.size / image.patch > kMostPatches) {
    reader.problem(
        "image_size",
        fmt::format("{} / patch_size {} makes {} patches along a side; expected at most {}",
                    image.size, image.patch, image.size / image.patch, kMostPatches));
    image.size = image.patch;
  }
  return image;
}

void read_lengths(SectionReader& reader, const HfModelConfig& published, ModelSection& section) {
  if (section.architecture == "vit") {
    section.image = read_image(reader, published);
    const int tokens = section.image->patches() + 1;
    section.encoder_seq_length = reader.positive("encoder_seq_length", tokens);
    section.max_position_embeddings = reader.positive("max_position_embeddings", tokens);
    for (const auto& [key, value] :
         {std::pair{"encoder_seq_length", section.encoder_seq_length},
          std::pair{"max_position_embeddings", section.max_position_embeddings}}) {
      if (value != tokens)
        reader.problem(
            key, fmt::format("{} contradicts {} patches and one token for the class; remove it",
                             value, tokens - 1));
    }
    return;
  }
  section.encoder_seq_length = reader.required_positive("encoder_seq_length");
  section.max_position_embeddings =
      reader.positive("max_position_embeddings",
                      published.max_position_embeddings.value_or(section.encoder_seq_length));
  if (section.architecture == "bert")
    section.type_vocab_size =
        reader.positive("type_vocab_size", published.type_vocab_size.value_or(2));
}

/// What is built: of an hf model by its type, of a Megatron model by its structure
/// (read_structure).
void read_architecture(SectionReader& reader, bool hf, const HfModelConfig& published,
                       ModelSection& section) {
  if (!hf && reader.has("model_type"))
    reader.problem("model_type",
                   "belongs to model_source hf; Megatron models say what they are made of");
  const std::string otherwise = published.model_type.empty() ? "llama" : published.model_type;
  // Mixtral's sizes of its experts are in config.json or in section `moe`.
  const std::string type =
      otherwise == "mixtral" && !reader.has("model_type")
          ? otherwise
          : reader.one_of("model_type", otherwise, {"llama", "mistral", "qwen3", "bert", "vit"});
  if (!published.model_type.empty() && type != published.model_type) {
    reader.problem("model_type", fmt::format("{} contradicts {} of model_config; remove it", type,
                                             published.model_type));
  }
  section.architecture = hf && (type == "bert" || type == "vit") ? type : "llama";
  section.qk_layernorm = hf && type == "qwen3";
}

void read_sizes(SectionReader& reader, const HfModelConfig& published, ModelSection& section) {
  section.num_layers =
      reader.at_most("num_layers", read_size(reader, "num_layers", published.num_hidden_layers),
                     kMostLayers, "each layer is planned and run one by one");
  section.hidden_size = read_size(reader, "hidden_size", published.hidden_size);
  section.ffn_hidden_size = read_size(reader, "ffn_hidden_size", published.intermediate_size);
  section.num_attention_heads =
      read_size(reader, "num_attention_heads", published.num_attention_heads);
  section.num_kv_heads = reader.positive(
      "num_kv_heads", published.num_key_value_heads.value_or(section.num_attention_heads));
  section.head_dim = read_head_dim(reader, section, published);
  read_lengths(reader, published, section);
  const double epsilon = is_encoder(section) ? 1e-12 : section.layernorm_epsilon;
  section.layernorm_epsilon =
      reader.positive("layernorm_epsilon", published.rms_norm_eps.value_or(epsilon));
  section.init_method_std = reader.positive(
      "init_method_std", published.initializer_range.value_or(section.init_method_std));
  section.sliding_window = reader.optional_positive("sliding_window_size");
  if (!reader.has("sliding_window_size")) section.sliding_window = published.sliding_window;
}

/// Megatron models call it position_freq_base (times position_abf_factor), Hugging Face models
/// rope_theta.
double read_rope_theta(SectionReader& reader, bool hf, double default_value) {
  const std::string key = hf ? "rope_theta" : "position_freq_base";
  const std::string other = hf ? "position_freq_base" : "rope_theta";
  if (reader.has(other)) {
    reader.problem(other, fmt::format("belongs to model_source {}; with model_source {} write `{}`",
                                      hf ? "megatron" : "hf", hf ? "hf" : "megatron", key));
  }
  const double base =
      reader.positive(key, default_value) * reader.positive("position_abf_factor", 1.0);
  if (base <= kMostRopeTheta) return base;
  reader.problem(key, fmt::format("{} is beyond {}, where no angle rotates", base, kMostRopeTheta));
  return default_value;
}

RopeScaling read_rope_section(SectionReader scaling) {
  RopeScaling section;
  const char* key = scaling.has("rope_type") || !scaling.has("type")
                        ? "rope_type"
                        : "type";  // newer and older transformers
  std::vector<std::string> known = rope_types();
  for (const char* later : {"yarn", "longrope"}) known.emplace_back(later);
  section.type = scaling.one_of(key, section.type, known);
  section.factor = scaling.positive("factor", section.factor);
  section.low_freq_factor = scaling.positive("low_freq_factor", section.low_freq_factor);
  section.high_freq_factor = scaling.positive("high_freq_factor", section.high_freq_factor);
  section.original_max_position_embeddings =
      scaling.optional_positive("original_max_position_embeddings").value_or(0);
  if (section.type != "default" && !scaling.has_value("factor"))
    scaling.problem("factor", fmt::format("the type {} needs it", section.type));
  return section;
}

RopeScaling read_rope_scaling(SectionReader& reader, const HfModelConfig& published) {
  RopeScaling section = published.rope_scaling.value_or(RopeScaling{});
  const double factor = reader.positive("positition_interpolation_factor", 1.0);
  if (factor != 1) section = {.type = "linear", .factor = factor};
  SectionReader scaling = reader.section("rope_scaling");
  if (!scaling.empty() && factor != 1)
    reader.problem("positition_interpolation_factor", "excludes rope_scaling; remove one of them");
  return scaling.empty() ? section : read_rope_section(scaling);
}

void finish_rope_scaling(SectionReader& reader, ModelSection& section) {
  RopeScaling& scaling = section.rope_scaling;
  if (scaling.type == "default") scaling = {};
  const bool needs_original = scaling.type == "llama3" || scaling.type == "dynamic";
  if (needs_original && scaling.original_max_position_embeddings == 0) {
    scaling.original_max_position_embeddings = section.max_position_embeddings;
  }
  if (is_later_rope_type(scaling.type))
    reader.unsupported("rope_scaling", fmt::format("RoPE scaling of type {}", scaling.type));
  if (scaling.type == "llama3" && scaling.low_freq_factor >= scaling.high_freq_factor) {
    reader.problem("rope_scaling",
                   fmt::format("low_freq_factor {} must be smaller than high_freq_factor {}",
                               scaling.low_freq_factor, scaling.high_freq_factor));
  }
}

void read_attention(SectionReader& reader, ModelSection& section) {
  section.qkv_linear = reader.get<bool>("qkv_linear", section.qkv_linear);
  section.fuse_qkv = reader.get<bool>("fuse_qkv", section.fuse_qkv);
  section.fuse_gate_up = reader.get<bool>("fuse_gate_up", section.fuse_gate_up);
  SectionReader fusions = reader.section("fusions");
  section.ring_attention = fusions.get<bool>("ring_attention", false);
  section.flash_attention = fusions.get<bool>("flash_attention", !section.ring_attention);
  if (section.ring_attention && section.flash_attention) {
    fusions.problem("ring_attention", "excludes flash_attention; set one of them to false");
  }
}

void read_norm_decay(SectionReader& reader, ModelSection& section) {
  SectionReader fusions = reader.section("fusions");
  const auto here = reader.optional<bool>("do_layer_norm_weight_decay");
  const auto there =
      fusions.optional<bool>("do_layer_norm_weight_decay");  // some NxDT files have it there
  if (here && there && *here != *there) {
    fusions.problem("do_layer_norm_weight_decay",
                    "contradicts model.do_layer_norm_weight_decay; remove one of them");
  }
  section.do_layer_norm_weight_decay = here.value_or(there.value_or(false));
}

/// Keys of one kind of encoder say nothing about another model.
void refuse_foreign_keys(SectionReader& reader, const ModelSection& section) {
  for (const auto& [key, type] : {std::pair{"type_vocab_size", "bert"},
                                  {"image_size", "vit"},
                                  {"patch_size", "vit"},
                                  {"num_channels", "vit"},
                                  {"num_labels", "vit"}}) {
    if (!reader.has_value(key) || section.architecture == type) continue;
    reader.problem(key, fmt::format("belongs to model_type {}, and this model is {}; remove it",
                                    type, section.architecture));
  }
}

}  // namespace

ModelSection read_model(SectionReader& reader, ModelSurroundings& surroundings) {
  const bool hf = surroundings.hf;
  const HfModelConfig published = read_model_config(reader, surroundings);
  ModelSection section;
  read_architecture(reader, hf, published, section);
  read_sizes(reader, published, section);
  if (!section.image)
    read_vocabulary(reader,
                    {published.vocab_size, hf, surroundings.strategy->tensor_model_parallel_size,
                     surroundings.tokenizer},
                    section);
  section.rope_theta =
      read_rope_theta(reader, hf, published.rope_theta.value_or(kDefaultRopeTheta));
  section.rope_scaling = read_rope_scaling(reader, published);
  finish_rope_scaling(reader, section);
  read_attention(reader, section);
  read_norm_decay(reader, section);
  section.attention_dropout = published.attention_dropout.value_or(0);
  section.hidden_dropout = published.hidden_dropout.value_or(hf ? 0 : 0.1);
  section.share_embeddings_and_output_weights = published.tie_word_embeddings;
  section.moe = read_moe(reader, !hf);
  if (!section.moe && published.moe && !reader.has("moe")) section.moe = published.moe;
  read_structure(reader, hf, section);
  refuse_foreign_keys(reader, section);
  if (is_encoder(section)) {
    reader.unsupported("model_type",
                       fmt::format("the training data of a {} model; a simulated step reads none",
                                   section.architecture),
                       /*changes_step=*/false);
  }
  read_recompute(reader, hf, section);
  read_pipeline_cuts(reader, section);
  section.weight_init_only = reader.get<bool>("weight_init_only", section.weight_init_only);
  Fields fields = Fields::reading(reader);
  dist_ckpt_fields(fields, section.dist_ckpt);
  section.skip_nan_grad = reader.get<bool>("skip_nan_grad", section.skip_nan_grad);
  const std::string dtype = reader.one_of("torch_dtype", published.bf16 ? "bfloat16" : "float32",
                                          {"bfloat16", "float32"});
  surroundings.bf16_checkpoint = hf && dtype == "bfloat16";
  return section;
}

}  // namespace trellis::trainer
