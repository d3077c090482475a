#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/nearest.h"
#include "trainer/config/names.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/model_readers.h"

namespace trellis::trainer {
namespace {

std::vector<std::string> read_module_names(SectionReader& reader) {
  const auto names = reader.optional<std::vector<std::string>>("activations_checkpoint_recompute");
  if (!names) return {};
  for (const std::string& name : *names) {
    if (std::ranges::find(recompute_module_names(), name) != recompute_module_names().end())
      continue;
    if (name == "LlamaRotaryEmbedding") {
      reader.problem("activations_checkpoint_recompute",
                     "LlamaRotaryEmbedding: there is nothing to recompute: its tables are made "
                     "once and a rotation "
                     "keeps no activation; remove it from the list");
      continue;
    }
    const std::string nearest = nearest_name(name, recompute_module_names());
    reader.problem("activations_checkpoint_recompute",
                   fmt::format("no module is called `{}`{}; expected {}", name,
                               nearest.empty() ? "" : fmt::format(", did you mean `{}`?", nearest),
                               join_names(recompute_module_names())));
  }
  return *names;
}

void read_recompute(SectionReader& reader, bool hf, ModelSection& section) {
  const std::string granularity =
      reader.has_value("activations_checkpoint_granularity")
          ? reader.one_of("activations_checkpoint_granularity", "selective", {"selective", "full"})
          : "";
  const std::vector<std::string> names = read_module_names(reader);
  const bool listed = reader.has_value("activations_checkpoint_recompute");
  if (granularity == "full") {
    section.recompute = Recompute::kFull;
    if (!names.empty())
      reader.warn("activations_checkpoint_recompute",
                  "has no effect: activations_checkpoint_granularity full recomputes every layer");
    return;
  }
  if (granularity == "selective") {
    section.recompute = Recompute::kSelective;
    section.recompute_modules = listed ? names : std::vector<std::string>{"CoreAttention"};
    if (listed && names.empty()) {
      reader.problem(
          "activations_checkpoint_recompute",
          "activations_checkpoint_granularity selective needs a name, such as CoreAttention");
    }
    return;
  }
  if (!names.empty()) {
    reader.problem(
        "activations_checkpoint_recompute",
        "needs activations_checkpoint_granularity: selective; write it or remove the list");
  }
  // NxDT's Hugging Face models never keep a full matrix of attention scores; encoders are not
  // NxDT's.
  if (hf && !section.flash_attention && !section.ring_attention && !is_encoder(section)) {
    section.recompute = Recompute::kSelective;
    section.recompute_modules = {"CoreAttention"};
  }
}

void read_pipeline_cuts(SectionReader& reader, ModelSection& section) {
  section.pipeline_cuts = reader.get<std::vector<std::string>>("pipeline_cuts", {});
  int previous = -1;
  for (const std::string& cut : section.pipeline_cuts) {
    const auto layer = layer_of(cut);
    if (!layer)
      return reader.problem(
          "pipeline_cuts",
          fmt::format("`{}` names no layer; expected names such as model.layers.{}", cut, 0));
    if (reader.good({"num_layers"}) && *layer >= section.num_layers - 1) {
      return reader.problem("pipeline_cuts",
                            fmt::format("`{}` is no layer that can end a stage: of num_layers {}, "
                                        "model.layers.0 to model.layers.{} can",
                                        cut, section.num_layers, section.num_layers - 2));
    }
    if (*layer <= previous) {
      return reader.problem(
          "pipeline_cuts",
          fmt::format("`{}` follows layer {}: the layers must ascend", cut, previous));
    }
    previous = *layer;
  }
}

}  // namespace

const std::vector<std::string>& recompute_module_names() {
  static const std::vector<std::string> names = {"CoreAttention", "LlamaMLP", "LlamaRMSNorm",
                                                 "ActivationMultiplyMLP", "LlamaDecoderLayer"};
  return names;
}

std::optional<int> layer_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || !name.substr(0, dot).ends_with("layers")) return std::nullopt;
  int layer = 0;
  const char* last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + dot + 1, last, layer);
  if (error != std::errc() || end != last || layer < 0) return std::nullopt;
  return layer;
}

void recompute_fields(Fields& fields, ModelSection& s, bool hf) {
  fields.form(
      "activations_checkpoint_granularity", [&](SectionReader& r) { read_recompute(r, hf, s); },
      [&](YamlWriter& out) {
        const bool none = s.recompute == Recompute::kNone;
        out.raw("activations_checkpoint_granularity", none ? "null" : name_of(s.recompute));
      });
  fields.form(
      "activations_checkpoint_recompute", [](SectionReader&) {},  // read with the granularity
      [&](YamlWriter& out) { out.texts("activations_checkpoint_recompute", s.recompute_modules); });
}

void pipeline_cuts_field(Fields& fields, ModelSection& s) {
  fields.form(
      "pipeline_cuts", [&](SectionReader& r) { read_pipeline_cuts(r, s); },
      [&](YamlWriter& out) { out.texts("pipeline_cuts", s.pipeline_cuts); });
}

}  // namespace trellis::trainer
