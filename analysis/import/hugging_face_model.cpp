#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"
#include "base/escape.h"
#include "base/yaml/yaml.h"
#include "trainer/config/families/model_family.h"
#include "trainer/config/sections/hf_model_config.h"

namespace trellis::analysis::hugging_face {
namespace {

using nlohmann::json;
using trainer::HfModelConfig;

constexpr const char* kSetting = "model.model_config";

/// Keys that the reader of model.model_config reads for every model, and for models of some types.
constexpr std::string_view kReadOfAll =
    "model_type num_hidden_layers hidden_size intermediate_size num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings vocab_size rope_theta rope_scaling "
    "rope_parameters rms_norm_eps initializer_range attention_dropout tie_word_embeddings "
    "torch_dtype dtype hidden_act";
constexpr std::string_view kReadOfDecoders = "mlp_bias pretraining_tp";
constexpr std::string_view kReadOfBiases = "attention_bias";
constexpr std::string_view kReadOfEncoders =
    "layer_norm_eps hidden_dropout_prob attention_probs_dropout_prob";

struct Model {
  const JsonObject& file;
  HfModelConfig read = {};
  std::map<std::string, std::string> problems = {};  ///< by key
  std::vector<std::string> keys_of_type = {}, all_keys = {};
};

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Reads the file as model.model_config does, so that both judge it alike.
void read_as_the_trainer(Model& model) {
  const YamlDocument document = YamlDocument::parse("model_config: x", "import");
  trainer::Findings findings{document.problems()};
  trainer::SectionReader reader(document.root(), "", findings);
  model.read = trainer::read_hf_model_config(model.file.file(), reader, "model_config");
  const std::string prefix = terminal_line(model.file.file() + ": ");
  for (const std::string& line : document.problems().lines()) {
    const std::size_t begin = line.find(prefix);
    if (begin == std::string::npos) throw ConfigError(line);
    const std::string text = line.substr(begin + prefix.size());
    const std::size_t colon = std::min(text.find(": "), text.size());
    std::string& problem = model.problems[text.substr(0, colon)];
    problem += (problem.empty() ? "" : "; ") + text.substr(std::min(colon + 2, text.size()));
  }
}

void list_keys(Model& model) {
  const trainer::ModelFamily* own = trainer::find_family(model.read.model_type);
  const bool encoder = own != nullptr && !is_on_hub(*own),
             biases = own != nullptr && own->structure.qkv_bias;
  std::vector<std::pair<std::string_view, bool>> groups = {{kReadOfAll, true},
                                                           {kReadOfBiases, !encoder && !biases},
                                                           {kReadOfDecoders, !encoder},
                                                           {kReadOfEncoders, encoder}};
  for (const trainer::ModelFamily* family : trainer::families()) {
    groups.emplace_back(family->read, family == own);
    groups.emplace_back(family->needs_off, false);
  }
  for (const auto& [words, of_type] : groups) {
    for (const std::string& word : words_of(words)) {
      model.all_keys.push_back(word);
      if (of_type) model.keys_of_type.push_back(word);
    }
  }
}

std::string advice_for(const std::string& key) {
  if (key == "model_type")
    return "; to simulate a model of the same sizes, name a copy of the file with another "
           "model_type";
  return "; correct a copy of the file, or train another model";
}

/// The head on top says what is trained.
ImportedKey architectures(SourceKey source, const Model& model, const json& value) {
  const std::string& type = model.read.model_type;
  const std::string task = type == "vit"    ? "ForImageClassification"
                           : type == "bert" ? "ForMaskedLM"
                                            : "ForCausalLM";
  const std::string name =
      value.is_array() && !value.empty() && value[0].is_string() ? value[0].get<std::string>() : "";
  if (name.empty() || name.ends_with(task))
    return at_default(std::move(source), "model_type decides; a model gets a head " + task);
  if (name.ends_with("Model") || name.ends_with("ForPreTraining"))
    return ignored(std::move(source), "model_type decides; a model gets a head " + task);
  return unsupported(std::move(source),
                     fmt::format("a model of type {} is trained as {}; this head is not supported",
                                 type.empty() ? "llama" : type, task));
}

/// transformers counts labels by their names where num_labels is absent.
ImportedKey labels(SourceKey source, const Model& model, const json& value) {
  if (model.read.model_type == "vit" && !model.read.num_labels && value.is_object() &&
      !value.empty())
    return mapped(source, {{"model.num_labels", fmt::format("{}", value.size())}},
                  "how many labels it names");
  return ignored(std::move(source), "names of labels do not change what is computed");
}

/// One window for all layers, or none.
ImportedKey layer_types(SourceKey source, const Model& model, const json& value) {
  const std::string expected = model.read.sliding_window ? "sliding_attention" : "full_attention";
  const bool alike =
      value.is_null() || (value.is_array() && std::ranges::all_of(value, [&](const json& type) {
                            return type == expected;
                          }));
  return alike ? at_default(std::move(source), "every layer has " + expected)
               : unsupported(std::move(source),
                             "layers of several kinds of attention are not supported: every layer "
                             "has " +
                                 expected);
}

/// Names of a nested mapping that no one reads here.
std::string unread_rope_key(const json& value) {
  static const std::vector<std::string> known = words_of(
      "rope_theta rope_type type factor low_freq_factor high_freq_factor "
      "original_max_position_embeddings");
  if (!value.is_object()) return "";
  for (const auto& [name, inner] : value.items()) {
    const bool whole = name == "partial_rotary_factor" && is_neutral_value(inner, "1");
    if (!inner.is_null() && !whole && !has(known, name)) return name;
  }
  return "";
}

ImportedKey read_rope(SourceKey source, const Model& model, const JsonKey& key, std::string note) {
  if (key.name == "rope_scaling" && model.file.find("rope_parameters") != nullptr)
    return ignored(std::move(source), "rope_parameters replaces it");
  if (model.read.rope_scaling && trainer::is_later_rope_type(model.read.rope_scaling->type))
    return unsupported(std::move(source),
                       fmt::format("RoPE scaling of type {} is not supported: a copy of the file "
                                   "with null trains on short sequences",
                                   model.read.rope_scaling->type));
  const std::string inner = unread_rope_key(key.value);
  if (inner == "partial_rotary_factor")
    return unsupported(std::move(source), "the whole of a head is rotated; expected 1");
  if (inner.empty()) return {std::move(source), ImportStatus::kMapped, {}, std::move(note)};
  return {std::move(source),
          ImportStatus::kUnclassified,
          {},
          "this program knows no key `" + terminal_line(inner) + "` in it"};
}

ImportedKey read_key(SourceKey source, const Model& model, const JsonKey& key) {
  if (key.value.is_null()) return at_default(std::move(source), "null: the model's default");
  std::string note = fmt::format("read from config.json by {}", kSetting);
  if (key.name == "rope_scaling" || key.name == "rope_parameters")
    return read_rope(std::move(source), model, key, std::move(note));
  if (key.name == "dtype" && model.file.find("torch_dtype") != nullptr)
    return ignored(std::move(source), "torch_dtype, its older name, is read");
  const bool dtype = key.name == "torch_dtype" || key.name == "dtype";
  if (dtype && !model.read.bf16 && key.value != "float32")
    note += "; weights are float32, as any other than bfloat16 are";
  return {std::move(source), ImportStatus::kMapped, {}, std::move(note)};
}

ImportedKey classify_key(const Model& model, const JsonKey& key) {
  SourceKey source = source_of("config.", key);
  if (const auto problem = model.problems.find(terminal_line(key.name));
      problem != model.problems.end())
    return unsupported(std::move(source), problem->second + advice_for(key.name));
  if (key.name == "architectures") return architectures(std::move(source), model, key.value);
  if (key.name == "id2label") return labels(std::move(source), model, key.value);
  if (key.name == "layer_types") return layer_types(std::move(source), model, key.value);
  if (const trainer::ModelFamily* family = trainer::find_family(model.read.model_type);
      family != nullptr && has(words_of(family->needs_off), key.name))
    return ignored(std::move(source), fmt::format("{} is off", family->off));
  if (has(model.keys_of_type, key.name)) return read_key(std::move(source), model, key);
  if (const Row* row = find_row(model_rows(), key.name)) {
    if (row->use == RowUse::kIgnored) return ignored(std::move(source), std::string(row->text));
    return is_neutral_value(key.value, row->neutral)
               ? at_default(std::move(source), std::string(row->text))
               : unsupported(std::move(source), std::string(row->text));
  }
  if (has(model.all_keys, key.name))
    return ignored(std::move(source),
                   "models of this type have no such property, in transformers "
                   "too");
  std::vector<std::string> known = keys_of(model_rows());
  known.insert(known.end(), model.all_keys.begin(), model.all_keys.end());
  return unknown(std::move(source), key.name, known);
}

/// Checks the sizes without which a result is no model. A type that is refused may have other names
/// for them, so it is not checked.
void check_sizes(const Model& model, Problems& problems) {
  if (model.problems.contains("model_type")) return;
  for (const char* name : {"num_hidden_layers", "hidden_size", "intermediate_size",
                           "num_attention_heads", "vocab_size"}) {
    const bool of_text = std::string_view(name) == "vocab_size";
    if (model.file.find(name) != nullptr || (of_text && model.read.model_type == "vit")) continue;
    problems.add(fmt::format("{}: config.{}", model.file.file(), name),
                 "missing; expected a Hugging Face config.json, which has the model's sizes");
  }
}

/// The first key that is read carries the setting, which is the whole file.
void add_model_config(const Model& model, ImportedConfig& imported) {
  const std::vector<Setting> settings = {{kSetting, yaml_text(model.file.file())}};
  const auto first = std::ranges::find_if(imported.keys, [](const ImportedKey& key) {
    return key.status == ImportStatus::kMapped && key.settings.empty();
  });
  if (first == imported.keys.end()) {
    imported.implied.push_back(settings.front());
  } else {
    *first = mapped(first->source, settings, first->note);
  }
}

}  // namespace

ModelFacts import_model(const JsonObject& config, ImportedConfig& imported, Problems& problems) {
  Model model{config};
  read_as_the_trainer(model);
  list_keys(model);
  check_sizes(model, problems);
  const std::string type = model.read.model_type.empty() ? "llama" : model.read.model_type;
  imported.implied.push_back({"name", "hf_" + type});
  imported.implied.push_back({"model_source", "hf"});
  for (const JsonKey& key : config.keys()) imported.keys.push_back(classify_key(model, key));
  add_model_config(model, imported);
  ModelFacts facts{type, model.read.num_key_value_heads, model.read.max_position_embeddings};
  if (!facts.kv_heads) facts.kv_heads = model.read.num_attention_heads;
  facts.has_sequence = type != "vit";
  return facts;
}

}  // namespace trellis::analysis::hugging_face
