#include "analysis/import/torchtitan_json.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/import/hugging_face_parts.h"
#include "base/error.h"
#include "base/json/json_text.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

std::string value_of(const json& value) {
  return value.is_string() ? hugging_face::yaml_text(value.get<std::string>()) : value.dump();
}

/// Lines of the keys of objects outside of lists, by dotted path. REQUIRES: `text` parses.
std::map<std::string, int> lines_of(const std::string& text) {
  std::map<std::string, int> lines;
  std::vector<std::string> path;
  std::string key;
  int line = 1, lists = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    line += c == '\n';
    lists += (c == '[') - (c == ']');
    if (c == '{' && lists == 0) path.push_back(path.empty() ? "" : path.back() + key + ".");
    if (c == '}' && lists == 0) path.pop_back();
    if (c != '"') continue;
    const std::size_t begin = i;
    for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    const std::size_t next = text.find_first_not_of(" \t\r\n", i + 1);
    if (lists > 0 || next == std::string::npos || text[next] != ':') continue;
    key = json::parse(text.substr(begin, i + 1 - begin)).get<std::string>();
    lines[path.back() + key] = line;
  }
  return lines;
}

/// Objects whose keys are no keys of torchtitan.
bool is_leaf(const std::string& path, const json& value) {
  return !value.is_object() || value.empty() || path == "dataloader.load_dataset_kwargs" ||
         path == "optimizer.optimizer_factory_kwargs_by_name";
}

class Reader {
 public:
  Reader(const std::string& text, std::string name)
      : document_(parse_json(text, name, "a configuration that torchtitan wrote")),
        name_(std::move(name)) {
    if (!is_torchtitan_json(document_))
      throw ConfigError(name_ +
                        ": expected the JSON that torchtitan 0.3 writes with "
                        "--debug.save_config_file: sections model_spec and parallelism");
    lines_ = lines_of(text);
  }

  TorchtitanJson read() {
    for (const auto& [section, value] : document_.items()) {
      if (section == "model_spec")
        read_model(value);
      else if (section == "activation_checkpoint")
        read_recompute(value);
      else
        add(section, value);
    }
    std::ranges::stable_sort(read_.keys, {}, [&](const TorchtitanKey& key) {
      const auto found = lines_.find(key.given.key);
      return found == lines_.end() ? 0 : found->second;
    });
    return std::move(read_);
  }

 private:
  [[nodiscard]] std::string where(const std::string& path) const {
    const auto found = lines_.find(path);
    return found == lines_.end() ? name_ : fmt::format("{}:{}", name_, found->second);
  }

  void put(const std::string& path, const std::string& value, const std::string& at,
           const std::string& key) {
    read_.keys.push_back({{path, value, where(at)}, {key, value, where(at)}});
  }

  void add(const std::string& path, const json& value) {
    if (path == "optimizer.param_groups" && read_groups(value)) return;
    if (is_leaf(path, value)) return put(path, value_of(value), path, path);
    for (const auto& [key, inner] : value.items()) add(path + "." + key, inner);
  }

  /// One group of all parameters, with what PyTorch has for what it leaves out.
  bool read_groups(const json& groups) {
    const std::string path = "optimizer.param_groups";
    if (!groups.is_array() || groups.size() != 1 || !groups[0].is_object() ||
        groups[0].value("pattern", json()) != ".*" ||
        !groups[0].value("optimizer_kwargs", json::object()).is_object())
      return false;
    const json name = groups[0].value("optimizer_name", json());
    json values = {{"lr", 1e-3}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}};
    values["weight_decay"] = name == "AdamW" ? 0.01 : 0.0;
    values.update(groups[0].value("optimizer_kwargs", json::object()));
    const json betas = values["betas"];
    if (!betas.is_array() || betas.size() != 2) return false;
    values.erase("betas");
    const std::string group = path + ".0.";
    put(group + "optimizer_name", value_of(name), path, "optimizer.name");
    put(group + "optimizer_kwargs.betas.0", betas[0].dump(), path, "optimizer.beta1");
    put(group + "optimizer_kwargs.betas.1", betas[1].dump(), path, "optimizer.beta2");
    for (const auto& [key, value] : values.items())
      put(group + "optimizer_kwargs." + key, value_of(value), path, "optimizer." + key);
    return true;
  }

  /// The file does not say which class it is; each has its own field.
  void read_recompute(const json& value) {
    const std::string path = "activation_checkpoint";
    const std::string mode = value.is_null()                                       ? "none"
                             : !value.is_object()                                  ? value_of(value)
                             : value.contains("force_recompute_mm_shapes_by_fqns") ? "selective"
                             : value.contains("memory_budget")                     ? "memory_budget"
                                                                                   : "full";
    put(path, mode, path, path + ".mode");
    if (value.is_object()) add(path, value);
  }

  void read_model(const json& spec) {
    const std::string path = "model_spec";
    const std::string name = value_of(spec.value("name", json())),
                      flavor = value_of(spec.value("flavor", json()));
    read_.values = {{"model.name", name, ""}, {"model.flavor", flavor, ""}};
    read_.model.push_back(at_default({path + ".name", name, where(path + ".name")},
                                     "model_spec.model has its parts"));
    read_.model.push_back(at_default({path + ".flavor", flavor, where(path + ".flavor")},
                                     "model_spec.model has its sizes"));
    const json model = spec.value("model", json());
    if (model.is_object() && model.contains("layers") && model["layers"].is_array())
      read_.values.push_back({"model.layers", std::to_string(model["layers"].size()), ""});
    const json::json_pointer experts("/layers/0/moe");
    if (model.contains(experts) && !model.at(experts).is_null())
      read_.values.push_back({"model.experts", "true", ""});
    std::ranges::move(torchtitan_decoder(model, where(path + ".model")),
                      std::back_inserter(read_.model));
  }

  json document_;
  std::string name_;
  std::map<std::string, int> lines_;
  TorchtitanJson read_;
};

}  // namespace

bool is_torchtitan_json(const json& document) {
  return document.is_object() && document.contains("parallelism") &&
         document.contains("model_spec") && document["model_spec"].is_object();
}

TorchtitanJson read_torchtitan_json(const std::string& text, const std::string& name) {
  return Reader(text, name).read();
}

bool starts_torchtitan(const std::string& text) {
  const auto has = [&](const char* words) { return text.find(words) != std::string::npos; };
  return has("torchtitan.train") || has("torchtitan/train.py") ||
         (has("torchtitan") && has("Trainer.Config("));
}

std::string torchtitan_advice() {
  return "torchtitan's configuration in Python or on a command line is not executed; with a TOML "
         "file (--job.config_file) import that; from 0.3 on make a file of it, with the arguments "
         "after torchtitan.train, and import config.json:\n"
         "  python -c \"import json; from torchtitan.config.manager import ConfigManager; "
         "json.dump(ConfigManager().parse_args().to_dict(), open('config.json', 'w'), indent=2)\" "
         "--module llama3 --config llama3_8b";
}

}  // namespace trellis::analysis
