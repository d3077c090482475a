#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "analysis/import/sources.h"
#include "analysis/import/torchtitan_json.h"
#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "base/yaml/yaml_compose.h"

namespace trellis::analysis {
namespace {

/// Configurations are written by hand; a larger file is something else.
constexpr std::int64_t kMostBytes = 1 << 24;

constexpr const char* kExpected =
    "expected one of:\n"
    "  nxdt: a YAML file with distributed_strategy or model_source\n"
    "  nemo: a YAML file with trainer and model, and tensor_model_parallel_size or "
    "pipeline_model_parallel_size in model\n"
    "  torchtitan: a TOML file with a section of torchtitan, such as [training] and "
    "[parallelism], or the JSON that it writes with --debug.save_config_file\n"
    "  megatron: a shell script or a text with --num-layers or pretrain_<name>.py\n"
    "  hf: a folder with config.json, or a JSON file with model_type or architectures";

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw ConfigError(file + ": " + why + "; " + kExpected);
}

/// The file as a JSON object; none when it is something else.
std::optional<nlohmann::json> json_object(const std::string& text, const std::string& file) {
  const std::size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first == std::string::npos || text[first] != '{') return std::nullopt;
  try {
    return parse_json(text, file, "JSON");
  } catch (const ConfigError&) {
    return std::nullopt;  // a mapping of YAML may begin alike
  }
}

/// The mapping of a YAML file, with the files that it names; none: it is something else.
std::optional<YamlMap> yaml_root(const std::string& text, const std::string& file) {
  std::optional<YamlMap> root;
  try {
    root = YamlDocument::parse(text, file).root();
  } catch (const ConfigError&) {
    return std::nullopt;  // shell scripts are no YAML
  }
  if (!root->has("defaults")) return root;
  const auto read = [](const auto& path) { return read_input_file(path, kMostBytes); };
  return compose_yaml(file, {}, read).document.root();
}

/// "nxdt", "nemo" or "".
std::string detect_yaml(const std::string& text, const std::string& file) {
  const std::optional<YamlMap> root = yaml_root(text, file);
  if (!root) return "";
  if (root->has("distributed_strategy") || root->has("model_source")) return "nxdt";
  const YamlMap model = root->map("model");
  const bool sizes =
      model.has("tensor_model_parallel_size") || model.has("pipeline_model_parallel_size");
  return root->has("trainer") && sizes ? "nemo" : "";
}

bool is_word_end(std::string_view text, std::size_t at) {
  return at >= text.size() ||
         (std::isalnum(static_cast<unsigned char>(text[at])) == 0 && text[at] != '-');
}

/// "pretrain_gpt.py"
bool names_pretraining(std::string_view line) {
  constexpr std::string_view kBegin = "pretrain_";
  for (std::size_t at = line.find(kBegin); at != std::string_view::npos;
       at = line.find(kBegin, at + 1)) {
    std::size_t end = at + kBegin.size();
    while (end < line.size() &&
           (std::isalnum(static_cast<unsigned char>(line[end])) != 0 || line[end] == '_'))
      ++end;
    if (line.substr(end).starts_with(".py") && is_word_end(line, end + 3)) return true;
  }
  return false;
}

/// Two headers of tables that only torchtitan has together.
bool is_torchtitan(const std::string& text) {
  constexpr std::array<std::string_view, 8> kTables = {
      "[job]",         "[model]",    "[optimizer]",  "[lr_scheduler]",
      "[parallelism]", "[training]", "[checkpoint]", "[activation_checkpoint]"};
  std::size_t found = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string_view header = std::string_view(line).substr(0, line.find('#'));
    header.remove_prefix(std::min(header.find_first_not_of(" \t"), header.size()));
    header = header.substr(0, header.find_last_not_of(" \t\r") + 1);
    found += std::ranges::find(kTables, header) != kTables.end() ? 1U : 0U;
  }
  return found >= 2;
}

/// A comment may talk about Megatron; only lines that do something count.
bool is_megatron(const std::string& text) {
  constexpr std::string_view kOption = "--num-layers";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos || line[first] == '#') continue;
    for (std::size_t at = line.find(kOption); at != std::string::npos;
         at = line.find(kOption, at + 1)) {
      if (is_word_end(line, at + kOption.size())) return true;
    }
    if (names_pretraining(line)) return true;
  }
  return false;
}

}  // namespace

std::string detect_source(const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    if (std::filesystem::exists(std::filesystem::path(file) / "config.json", error)) return "hf";
    refuse(file, "this folder has no config.json");
  }
  const std::string text = read_input_file(file, kMostBytes);
  const auto object = json_object(text, file);
  if (object && (object->contains("model_type") || object->contains("architectures"))) return "hf";
  if (object && is_torchtitan_json(*object)) return "torchtitan";
  if (object && (object->contains("per_device_train_batch_size") || object->contains("output_dir")))
    refuse(file,
           "these are TrainingArguments without a model; name the model's folder, and put this "
           "file into it as training_args.json");
  if (std::string source = detect_yaml(text, file); !source.empty()) return source;
  if (is_torchtitan(text)) return "torchtitan";
  if (is_megatron(text)) return "megatron";
  if (starts_torchtitan(text)) throw ConfigError(file + ": " + torchtitan_advice());
  refuse(file, "this is no configuration that can be imported");
}

}  // namespace trellis::analysis
