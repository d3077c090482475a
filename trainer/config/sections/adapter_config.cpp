#include "trainer/config/sections/adapter_config.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostConfigBytes = 1 << 20;

/// One object, whose problems are collected.
class Reader {
 public:
  Reader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  [[nodiscard]] const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void problem(const char* name, const std::string& text) {
    problems_.add(file_ + ": " + name, text);
  }
  void throw_if_any() const { problems_.throw_if_any(); }

  std::optional<int> positive(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (found->is_number_integer() && *found >= 1 && *found <= std::numeric_limits<int>::max())
      return found->get<int>();
    problem(name, "expected an integer of at least 1, got " + found->dump());
    return std::nullopt;
  }
  std::optional<double> number(const char* name, bool may_be_zero) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (found->is_number() && (*found > 0 || (may_be_zero && *found == 0)))
      return found->get<double>();
    problem(name, "expected a number " + std::string(may_be_zero ? "of at least" : "greater than") +
                      " 0, got " + found->dump());
    return std::nullopt;
  }
  std::optional<bool> boolean(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (found->is_boolean()) return found->get<bool>();
    problem(name, "expected true or false, got " + found->dump());
    return std::nullopt;
  }
  std::optional<std::string> text(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    problem(name, "expected a text, got " + found->dump());
    return std::nullopt;
  }
  std::optional<std::vector<std::string>> names(const char* name) {
    const json* found = find(name);
    if (found == nullptr) return std::nullopt;
    const bool is_list = found->is_array() && std::ranges::all_of(*found, [](const json& each) {
                           return each.is_string();
                         });
    if (is_list) return found->get<std::vector<std::string>>();
    problem(name, "expected a list of names, got " + found->dump());
    return std::nullopt;
  }
  /// A field that changes what the adapter computes, and that only these values leave as it is.
  void only(const char* name, const std::vector<json>& neutral, const std::string& why) {
    const json* found = find(name);
    if (found == nullptr || std::ranges::find(neutral, *found) != neutral.end()) return;
    problem(name, fmt::format("expected {} or none, got {}: {}", neutral.front().dump(),
                              found->dump(), why));
  }

 private:
  const json& object_;
  std::string file_;
  Problems problems_;
};

void check_kind(Reader& reader) {
  const json none = json::object(), no_list = json::array();
  reader.only("peft_type", {"LORA"}, "adapters of another kind than LoRA are not supported");
  reader.only("use_dora", {false}, "weight-decomposed adapters (DoRA) are not supported");
  reader.only("rank_pattern", {none}, "ranks that differ from layer to layer are not supported");
  reader.only("alpha_pattern", {none}, "scales that differ from layer to layer are not supported");
  reader.only("lora_bias", {false}, "biases of B are not supported");
  reader.only("layer_replication", {no_list}, "repeated layers are not supported");
  reader.only("target_parameters", {no_list}, "adapters of parameters are not supported");
  reader.only("trainable_token_indices", {no_list, none}, "separate tokens are not supported");
  reader.only("alora_invocation_tokens", {no_list}, "activated LoRA is not supported");
  reader.only("use_qalora", {false}, "adapters of quantized layers (QALoRA) are not supported");
  reader.only("use_bdlora", {false}, "block-diagonal adapters are not supported");
  reader.only("kasa_config", {none}, "scaled singular values (KaSA) are not supported");
  reader.only("arrow_config", {none}, "a choice among adapters (Arrow) is not supported");
  reader.only("monteclora_config", {none}, "sampled adapters (MonteCLoRA) are not supported");
  // With other starts PEFT takes the adapters' first values from the base's weights.
  reader.only("init_lora_weights", {true, false, "default", "gaussian", "eva", "orthogonal"},
              "its base is not the model's: save it with PEFT's "
              "path_initial_model_for_weight_conversion, which makes it one of the model's base");
}

void read_targets(Reader& reader, AdapterConfig& config) {
  const json* found = reader.find("target_modules");
  if (found != nullptr && found->is_string()) {
    config.target_regex = found->get<std::string>();
  } else {
    config.targets = reader.names("target_modules");
    if (config.targets) std::ranges::sort(*config.targets);
  }
}

/// Present, and not null.
bool is_given(const YamlMap& peft, const std::string& key) { return peft.flow_text(key) != "null"; }

std::string quoted(const std::string& text) { return json(text).dump(); }

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + quoted(name);
  return "[" + text + "]";
}

/// "key=value" for what the file says.
std::vector<std::pair<std::string, std::string>> values_of(const AdapterConfig& config) {
  std::vector<std::pair<std::string, std::string>> values;
  const auto add = [&](const char* key, const auto& value) {
    if (value) values.emplace_back(key, fmt::format("{}", *value));
  };
  add("lora_rank", config.rank);
  add("lora_alpha", config.alpha);
  add("lora_dropout", config.dropout);
  add("use_rslora", config.use_rslora);
  add("lora_bias", config.bias);
  if (!config.target_regex.empty())
    values.emplace_back("target_modules", quoted(config.target_regex));
  if (config.targets && !config.targets->empty())
    values.emplace_back("target_modules", list_of(*config.targets));
  if (config.modules_to_save && !config.modules_to_save->empty())
    values.emplace_back("modules_to_save", list_of(*config.modules_to_save));
  return values;
}

/// Without a file: all that the adapters' numbers would come from.
constexpr const char* kNumbers[] = {"lora_rank", "lora_alpha", "target_modules"};

}  // namespace

AdapterConfig parse_adapter_config(const std::string& text, const std::string& file) {
  const json object = parse_json(text, file, "the configuration of saved adapters");
  if (!object.is_object())
    throw ConfigError(file + ": expected a JSON object, got " + object.dump().substr(0, 80));
  Reader reader(object, file);
  check_kind(reader);
  AdapterConfig config;
  config.file = file;
  // A key that the file leaves out has the default of PEFT's and NxD's LoraConfig, not the YAML's.
  constexpr int kRank = 8;
  constexpr double kAlpha = 8;
  config.rank =
      reader.positive(reader.find("lora_rank") != nullptr ? "lora_rank" : "r").value_or(kRank);
  config.alpha = reader.number("lora_alpha", /*may_be_zero=*/false).value_or(kAlpha);
  config.dropout = reader.number("lora_dropout", /*may_be_zero=*/true).value_or(0);
  config.use_rslora = reader.boolean("use_rslora").value_or(false);
  config.bias =
      reader
          .text(reader.find("lora_bias") != nullptr && reader.find("lora_bias")->is_string()
                    ? "lora_bias"
                    : "bias")
          .value_or("none");
  config.modules_to_save = reader.names("modules_to_save");
  read_targets(reader, config);
  config.base_model = reader.text("base_model_name_or_path").value_or("");
  reader.throw_if_any();
  return config;
}

std::filesystem::path adapter_config_file(const std::string& folder, const std::string& tag) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (const fs::path& place : {fs::path(folder) / tag, fs::path(folder)}) {
    if (fs::exists(place / kAdapterConfigFile, ignored)) return place / kAdapterConfigFile;
  }
  return {};
}

std::vector<std::string> overrides_of_adapter(const YamlMap& peft) {
  const std::string load = peft.raw("load_lora_from_ckpt");
  if (load != "true" && load != "True" && load != "TRUE") return {};
  const std::string named = peft.raw("lora_save_dir");
  const std::string folder = named.empty() ? kLoraFolder : named;
  const bool complete =
      std::ranges::all_of(kNumbers, [&](const char* key) { return is_given(peft, key); });
  const std::filesystem::path file = adapter_config_file(folder, peft.raw("lora_load_tag"));
  if (file.empty()) {
    if (!complete && !std::filesystem::is_directory(folder) && !folder.starts_with("s3://"))
      peft.problem("lora_save_dir", folder +
                                        ": expected a folder of adapters, found none; correct "
                                        "the path, or set load_lora_from_ckpt to false");
    return {};
  }
  try {
    std::vector<std::string> overrides;
    for (const auto& [key, value] :
         values_of(parse_adapter_config(read_input_file(file, kMostConfigBytes), file.string()))) {
      if (!is_given(peft, key))
        overrides.push_back("model_alignment_strategy.peft." + key + "=" + value);
    }
    return overrides;
  } catch (const ConfigError& error) {
    peft.problem("lora_save_dir", error.what());
    return {};
  }
}

void name_fused_layers(const ModelSection& model, LoraSection& lora) {
  struct Fused {
    const char *part, *layer;
    bool holds;
  };
  const Fused all[] = {{"q_proj", "qkv_proj", model.qkv_linear},
                       {"k_proj", "qkv_proj", model.qkv_linear},
                       {"v_proj", "qkv_proj", model.qkv_linear},
                       {"gate_proj", "gate_up_proj", model.fuse_gate_up},
                       {"up_proj", "gate_up_proj", model.fuse_gate_up}};
  for (std::string& target : lora.targets) {
    for (const Fused& fused : all) {
      const bool is_name = target == fused.part || target.ends_with("." + std::string(fused.part));
      if (!fused.holds || !is_name) continue;
      target.replace(target.rfind(fused.part), std::string::npos, fused.layer);
      break;
    }
  }
  std::vector<std::string> once;
  for (const std::string& target : lora.targets) {
    if (std::ranges::find(once, target) == once.end()) once.push_back(target);
  }
  lora.targets = std::move(once);
}

}  // namespace trellis::trainer
