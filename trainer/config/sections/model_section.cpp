#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "trainer/config/families/model_family.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/hf_model_config.h"
#include "trainer/config/sections/model_readers.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

constexpr int kMostLayers =
    1024;  ///< the deepest published Transformer has 1,000 (DeepNet, arXiv:2203.00555)

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

void check_image(SectionReader& reader, ImageSection& image) {
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
}

/// Fields of encoders, which NxDT does not have; the names are those of config.json.
void encoder_fields(Fields& fields, ModelSection& s) {
  const auto field = [&](const char* key, bool there, int& value) {
    fields.own().form(
        key,
        [&](SectionReader& r) {
          if (there) value = r.positive(key, value);
        },
        [&](YamlWriter& out) {
          if (there) out.integer(key, value);
        });
  };
  ImageSection none, &image = s.image ? *s.image : none;
  field("type_vocab_size", s.type_vocab_size > 0, s.type_vocab_size);
  field("image_size", s.image.has_value(), image.size);
  field("patch_size", s.image.has_value(), image.patch);
  field("num_channels", s.image.has_value(), image.channels);
  field("num_labels", s.image.has_value(), image.labels);
  fields.rule([&](SectionReader& r) { check_image(r, image); });
}

/// An image has a token per patch, and one for its class.
void read_lengths(SectionReader& reader, ModelSection& s) {
  if (!s.image) {
    s.encoder_seq_length = reader.required_positive("encoder_seq_length");
    const int otherwise =
        s.max_position_embeddings > 0 ? s.max_position_embeddings : s.encoder_seq_length;
    s.max_position_embeddings = reader.positive("max_position_embeddings", otherwise);
    return;
  }
  const int tokens = s.image->patches() + 1;
  s.encoder_seq_length = reader.positive("encoder_seq_length", tokens);
  s.max_position_embeddings = reader.positive("max_position_embeddings", tokens);
  for (const auto& [key, value] :
       {std::pair{"encoder_seq_length", s.encoder_seq_length},
        std::pair{"max_position_embeddings", s.max_position_embeddings}}) {
    if (value != tokens)
      reader.problem(key,
                     fmt::format("{} contradicts {} patches and one token for the class; remove it",
                                 value, tokens - 1));
  }
}

/// Decides the architecture: by its type for an hf model, by its structure for a Megatron model.
void read_architecture(SectionReader& reader, bool hf, const HfModelConfig& published,
                       ModelSection& s) {
  if (!hf && reader.has("model_type"))
    reader.problem("model_type",
                   "belongs to model_source hf; Megatron models say what they are made of");
  const std::string otherwise = published.model_type.empty() ? "llama" : published.model_type;
  const bool is_said = reader.has("model_type") || family_of_type(otherwise).in_yaml;
  const std::string type =
      is_said ? reader.one_of("model_type", otherwise,
                              family_types([](const ModelFamily& f) { return f.in_yaml; }))
              : otherwise;
  if (!published.model_type.empty() && type != published.model_type) {
    reader.problem("model_type", fmt::format("{} contradicts {} of model_config; remove it", type,
                                             published.model_type));
  }
  if (!hf) return;
  const ModelFamily& family = family_of_type(type);
  if (!is_on_hub(family)) s.architecture = family.type;
  set_structure(family.structure, s);
  s.share_embeddings_and_output_weights =
      family.tied_head.value_or(s.share_embeddings_and_output_weights);
}

/// The values of config.json, which the YAML overrides; 0 where one of the two has to give a value.
ModelSection defaults_of(bool hf, const HfModelConfig& published) {
  ModelSection s;
  s.num_layers = published.num_hidden_layers.value_or(0);
  s.hidden_size = published.hidden_size.value_or(0);
  s.ffn_hidden_size = published.intermediate_size.value_or(0);
  s.num_attention_heads = published.num_attention_heads.value_or(0);
  s.num_kv_heads = published.num_key_value_heads.value_or(0);
  s.max_position_embeddings = published.max_position_embeddings.value_or(0);
  s.init_method_std = published.initializer_range.value_or(s.init_method_std);
  s.sliding_window = published.sliding_window;
  s.rope_theta = published.rope_theta.value_or(s.rope_theta);
  s.rope_scaling = published.rope_scaling.value_or(s.rope_scaling);
  s.attention_dropout = published.attention_dropout.value_or(0);
  s.hidden_dropout = published.hidden_dropout.value_or(hf ? 0 : 0.1);
  s.share_embeddings_and_output_weights = published.tie_word_embeddings;
  s.use_scaled_init_method = s.apply_query_key_layer_scaling = !hf;
  return s;
}

/// Adds the defaults that depend on the architecture.
void add_defaults_of_architecture(const HfModelConfig& published, ModelSection& s) {
  s.layernorm_epsilon =
      published.rms_norm_eps.value_or(is_encoder(s) ? 1e-12 : s.layernorm_epsilon);
  if (s.architecture == "bert") s.type_vocab_size = published.type_vocab_size.value_or(2);
  if (s.architecture != "vit") return;
  s.image.emplace();
  s.image->size = published.image_size.value_or(s.image->size);
  s.image->patch = published.patch_size.value_or(s.image->patch);
  s.image->channels = published.num_channels.value_or(s.image->channels);
  s.image->labels = published.num_labels.value_or(s.image->labels);
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

/// Data on which the meaning of the section depends.
struct ModelContext {
  bool hf = false;
  HfModelConfig published = {};
  VocabularySources vocabulary = {};
  std::string dtype = "";  ///< torch_dtype: bfloat16, float32; while it writes, "": none
};

void architecture_field(Fields& fields, ModelSection& s, const ModelContext& context) {
  fields.own().form(
      "model_type",
      [&](SectionReader& r) {
        read_architecture(r, context.hf, context.published, s);
        add_defaults_of_architecture(context.published, s);
      },
      [&](YamlWriter& out) {
        if (is_encoder(s)) return out.text("model_type", s.architecture);
        const ModelFamily* family = context.hf ? family_with(structure_of(s)) : nullptr;
        if (family != nullptr && family->structure != FamilyStructure())
          out.text("model_type", family->type);
      });
}

void size_fields(Fields& fields, ModelSection& s, const ModelContext& context) {
  fields.size("num_layers", s.num_layers);
  fields.rule([&](SectionReader& r) {
    s.num_layers = r.at_most("num_layers", s.num_layers, kMostLayers,
                             "each layer is planned and run one by one");
  });
  fields.size("hidden_size", s.hidden_size);
  fields.size("ffn_hidden_size", s.ffn_hidden_size);
  fields.size("num_attention_heads", s.num_attention_heads);
  fields.rule([&](SectionReader&) {
    if (s.num_kv_heads == 0) s.num_kv_heads = s.num_attention_heads;
  });
  fields.positive("num_kv_heads", s.num_kv_heads);
  fields.form(
      "kv_channels", [&](SectionReader& r) { s.head_dim = read_head_dim(r, s, context.published); },
      [&](YamlWriter& out) { out.integer("kv_channels", s.head_dim); });
  fields.form(
      "encoder_seq_length", [&](SectionReader& r) { read_lengths(r, s); },
      [&](YamlWriter& out) { out.integer("encoder_seq_length", s.encoder_seq_length); });
  fields.form(
      "max_position_embeddings", [](SectionReader&) {},  // read with encoder_seq_length
      [&](YamlWriter& out) { out.integer("max_position_embeddings", s.max_position_embeddings); });
}

void value_fields(Fields& fields, ModelSection& s) {
  fields.positive("layernorm_epsilon", s.layernorm_epsilon);
  fields.positive("init_method_std", s.init_method_std);
  fields.boolean("use_scaled_init_method", s.use_scaled_init_method);
  fields.form(
      "do_layer_norm_weight_decay", [&](SectionReader& r) { read_norm_decay(r, s); },
      [&](YamlWriter& out) {
        out.boolean("do_layer_norm_weight_decay", s.do_layer_norm_weight_decay);
      });
  fields.form(
      "sliding_window_size",
      [&](SectionReader& r) {
        const auto window = r.optional_positive("sliding_window_size");
        if (r.has("sliding_window_size")) s.sliding_window = window;
      },
      [&](YamlWriter& out) { out.integer_or_null("sliding_window_size", s.sliding_window); });
}

void fusion_fields(Fields& fields, ModelSection& s) {
  fields.boolean("flash_attention", s.flash_attention);
  fields.boolean("ring_attention", s.ring_attention);
  fields.only_read("do_layer_norm_weight_decay");  // some NxDT files have it here
  fields.rule([&](SectionReader& r) {
    if (s.ring_attention && !r.has_value("flash_attention")) s.flash_attention = false;
    if (s.ring_attention && s.flash_attention)
      r.problem("ring_attention", "excludes flash_attention; set one of them to false");
  });
}

/// `source`: the model's section as the file has it.
void attention_fields(Fields& fields, ModelSection& s, const YamlMap* source) {
  fields.boolean("qkv_linear", s.qkv_linear);
  fields.boolean("fuse_qkv", s.fuse_qkv);
  // NxDT always fuses them; neuronx-nemo-megatron did not before its 0.5.0 (its ParallelMLP had
  // dense_h_to_4h and dense_h_to_4h_2).
  fields.own().form(
      "fuse_gate_up",
      [&](SectionReader& r) { s.fuse_gate_up = r.get<bool>("fuse_gate_up", s.fuse_gate_up); },
      [&](YamlWriter& out) {
        if (!s.fuse_gate_up) out.boolean("fuse_gate_up", false);
      });
  fields.section(
      [&](SectionReader& r) {
        SectionReader fusions = r.section("fusions");
        Fields inner = Fields::reading(fusions);
        fusion_fields(inner, s);
      },
      [&](YamlWriter& out) {
        out.open("fusions");
        Fields inner = Fields::writing(out);
        fusion_fields(inner, s);
        out.keep(source->map("fusions"), "model.fusions");
        out.close();
      });
}

void dist_ckpt_section(Fields& fields, DistCkptSection& s) {
  fields.section(
      [&](SectionReader& r) {
        Fields inner = Fields::reading(r);
        dist_ckpt_fields(inner, s);
      },
      [&](YamlWriter& out) {
        if (s == DistCkptSection()) return;
        Fields inner = Fields::writing(out);
        dist_ckpt_fields(inner, s);
      });
}

void run_fields(Fields& fields, ModelSection& s, ModelContext& context) {
  pipeline_cuts_field(fields, s);
  recompute_fields(fields, s, context.hf);
  fields.boolean("weight_init_only", s.weight_init_only);
  dist_ckpt_section(fields, s.dist_ckpt);
  fields.form(
      "skip_nan_grad",
      [&](SectionReader& r) { s.skip_nan_grad = r.get<bool>("skip_nan_grad", s.skip_nan_grad); },
      [&](YamlWriter& out) {
        if (s.skip_nan_grad) out.boolean("skip_nan_grad", true);
      });
  fields.own().form(
      "torch_dtype",
      [&](SectionReader& r) {
        context.dtype = r.one_of("torch_dtype", context.published.bf16 ? "bfloat16" : "float32",
                                 {"bfloat16", "float32"});
      },
      [&](YamlWriter& out) {
        if (!context.dtype.empty()) out.text("torch_dtype", context.dtype);
      });
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

void read_moe_of_model(SectionReader& reader, const ModelContext& context, ModelSection& s) {
  s.moe = read_moe(reader, !context.hf);
  if (!s.moe && !reader.has("moe")) s.moe = context.published.moe;
}

void finish(SectionReader& reader, ModelSection& s) {
  s.architecture = architecture_of(s);
  refuse_foreign_keys(reader, s);
  if (is_encoder(s)) {
    reader.unsupported(
        "model_type",
        fmt::format("the training data of a {} model; a simulated step reads none", s.architecture),
        /*changes_step=*/false);
  }
}

/// Everything but `optim`. `source`: while it writes, the section as the file has it.
void model_fields(Fields& fields, ModelSection& s, ModelContext& context,
                  const YamlMap* source = nullptr) {
  fields.only_read("model_config");  // read before: its values are the defaults
  architecture_field(fields, s, context);
  encoder_fields(fields, s);
  size_fields(fields, s, context);
  vocabulary_fields(fields, s, context.vocabulary);
  value_fields(fields, s);
  structure_fields(fields, s, context.hf);
  rope_fields(fields, s, context.hf);
  attention_fields(fields, s, source);
  run_fields(fields, s, context);
  fields.section([&](SectionReader& r) { read_moe_of_model(r, context, s); },
                 [&](YamlWriter& out) {
                   if (s.moe) write_moe(out, *s.moe);
                 });
  fields.rule([&](SectionReader& r) { finish(r, s); });
}

}  // namespace

ModelSection read_model(SectionReader& reader, ModelSurroundings& surroundings) {
  ModelContext context{.hf = surroundings.hf, .published = read_model_config(reader, surroundings)};
  context.vocabulary = {context.published.vocab_size, context.hf,
                        surroundings.strategy->tensor_model_parallel_size, surroundings.tokenizer};
  ModelSection section = defaults_of(context.hf, context.published);
  Fields fields = Fields::reading(reader);
  model_fields(fields, section, context);
  surroundings.bf16_checkpoint = context.hf && context.dtype == "bfloat16";
  return section;
}

void write_model(YamlWriter& out, const RunConfig& config, const YamlMap& source) {
  ModelSection section = config.model;
  ModelContext context{.hf = config.model_source == "hf"};
  if (config.precision.type == "autocast")
    context.dtype = config.precision.weights_bf16 ? "bfloat16" : "float32";
  out.open("model");
  Fields fields = Fields::writing(out);
  model_fields(fields, section, context, &source);
  write_optim(out, section.optim);
  out.keep(source, "model");
  out.close();
}

void list_model_keys(Fields& fields) {
  ModelSection section;
  ModelContext context;
  model_fields(fields, section, context);
}

void list_fusion_keys(Fields& fields) {
  ModelSection section;
  fusion_fields(fields, section);
}

}  // namespace trellis::trainer
