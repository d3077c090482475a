#include <fmt/format.h>

#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/hf_model_config.h"
#include "trainer/config/sections/model_readers.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

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

double read_rotary_percentage(SectionReader& reader) {
  const double share = reader.get<double>("rotary_percentage", 1.0);
  if (share > 0 && share <= 1) return share;
  reader.problem("rotary_percentage", fmt::format("must be in (0, 1], got {}", share));
  return 1;
}

void read_rope_type(SectionReader& reader, RopeScaling& s) {
  const char* key = reader.has("rope_type") || !reader.has("type")
                        ? "rope_type"
                        : "type";  // newer and older transformers
  std::vector<std::string> known = rope_types();
  for (const char* later : {"yarn", "longrope"}) known.emplace_back(later);
  s.type = reader.one_of(key, s.type, known);
}

void scaling_fields(Fields& fields, RopeScaling& s) {
  fields.form(
      "rope_type", [&](SectionReader& r) { read_rope_type(r, s); },
      [&](YamlWriter& out) { out.text("rope_type", s.type); });
  fields.only_read("type");
  fields.positive("factor", s.factor);
  fields.positive("low_freq_factor", s.low_freq_factor);
  fields.positive("high_freq_factor", s.high_freq_factor);
  const char* original = "original_max_position_embeddings";
  fields.form(
      original,
      [&](SectionReader& r) {
        s.original_max_position_embeddings = r.optional_positive(original).value_or(0);
      },
      [&](YamlWriter& out) {
        if (s.original_max_position_embeddings > 0)
          out.integer(original, s.original_max_position_embeddings);
      });
  fields.rule([&](SectionReader& r) {
    if (s.type != "default" && !r.has_value("factor"))
      r.problem("factor", fmt::format("the type {} needs it", s.type));
  });
}

/// `published`: what config.json says.
RopeScaling read_rope_scaling(SectionReader& reader, const RopeScaling& published) {
  const double factor = reader.positive("positition_interpolation_factor", 1.0);
  SectionReader scaling = reader.section("rope_scaling");
  if (!scaling.empty() && factor != 1)
    reader.problem("positition_interpolation_factor", "excludes rope_scaling; remove one of them");
  if (scaling.empty())
    return factor == 1 ? published : RopeScaling{.type = "linear", .factor = factor};
  RopeScaling section;
  Fields fields = Fields::reading(scaling);
  scaling_fields(fields, section);
  return section;
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

void write_rope_scaling(YamlWriter& out, RopeScaling section) {
  if (section == RopeScaling{}) return;
  out.open("rope_scaling");
  Fields fields = Fields::writing(out);
  scaling_fields(fields, section);
  out.close();
}

}  // namespace

void rope_fields(Fields& fields, ModelSection& s, bool hf) {
  const auto theta = [&](const char* key, bool of_source) {
    fields.form(
        key,
        [&](SectionReader& r) {
          if (of_source) s.rope_theta = read_rope_theta(r, hf, s.rope_theta);
        },
        [&](YamlWriter& out) {
          if (of_source) out.number(key, s.rope_theta);
        });
  };
  theta("position_freq_base", !hf);
  theta("rope_theta", hf);
  fields.only_read("position_abf_factor");
  fields.form(
      "rotary_percentage",
      [&](SectionReader& r) { s.rotary_percentage = read_rotary_percentage(r); },
      [&](YamlWriter& out) { out.number("rotary_percentage", s.rotary_percentage); });
  fields.only_read("positition_interpolation_factor");
  fields.section(
      [&](SectionReader& r) {
        s.rope_scaling = read_rope_scaling(r, s.rope_scaling);
        finish_rope_scaling(r, s);
      },
      [&](YamlWriter& out) { write_rope_scaling(out, s.rope_scaling); });
}

void list_rope_scaling_keys(Fields& fields) {
  RopeScaling section;
  scaling_fields(fields, section);
}

}  // namespace trellis::trainer
