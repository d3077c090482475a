#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"
#include "analysis/import/sources.h"

namespace trellis::analysis {
namespace {

namespace hf = hugging_face;

constexpr const char* kConfig = "a Hugging Face model's folder, or its config.json";
constexpr const char* kArguments =
    "transformers' TrainingArguments as JSON, as TrainingArguments.to_json_string() writes them";

std::filesystem::path config_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  const std::filesystem::path file = path / "config.json";
  if (std::filesystem::exists(file, error)) return file;
  throw ConfigError(
      fmt::format("{}: this folder has no config.json; expected {}", path.string(), kConfig));
}

/// The named file, or one next to config.json; "": none.
std::string arguments_file(const std::filesystem::path& config, const std::string& named) {
  if (!named.empty()) return named;
  const std::filesystem::path file = config.parent_path() / "training_args.json";
  std::error_code error;
  return std::filesystem::exists(file, error) ? file.string() : "";
}

}  // namespace

ImportedConfig import_hugging_face(const std::string& path, const std::string& training_args) {
  const std::filesystem::path file = config_file(path);
  ImportedConfig imported{.from = "hf", .keys = {}};
  Problems problems;
  const hf::JsonObject config = hf::JsonObject::read(file.string(), kConfig);
  const hf::ModelFacts model = hf::import_model(config, imported, problems);
  const std::string arguments = arguments_file(file, training_args);
  std::optional<hf::JsonObject> object;
  if (!arguments.empty()) object = hf::JsonObject::read(arguments, kArguments);
  const hf::Arguments args(object ? &*object : nullptr, problems);
  const hf::Context context = hf::context_of(args, model);
  if (object) hf::refuse_contradictions(*object, problems);
  if (object) hf::import_arguments(*object, context, imported);
  hf::add_implied(context, imported);
  problems.throw_if_any();
  return imported;
}

ImportedConfig import_training_arguments(const std::string& text, const std::string& name,
                                         int kv_heads) {
  ImportedConfig imported{.from = "hf", .keys = {}};
  Problems problems;
  const hf::ModelFacts model{.type = "model", .kv_heads = kv_heads, .has_sequence = false};
  const hf::JsonObject object = hf::JsonObject::parse(text, name, kArguments);
  const hf::Arguments args(&object, problems);
  const hf::Context context = hf::context_of(args, model);
  hf::refuse_contradictions(object, problems);
  hf::import_arguments(object, context, imported);
  hf::add_implied(context, imported);
  problems.throw_if_any();
  return imported;
}

}  // namespace trellis::analysis
