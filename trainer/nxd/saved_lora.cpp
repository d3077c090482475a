#include "trainer/nxd/saved_lora.h"

#include <optional>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "base/log.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::trainer {
namespace {

using checkpoint::Place;
using checkpoint::Value;

constexpr std::int64_t kMostConfigBytes = 1 << 20;

std::vector<std::string> texts_of(const Value& value) {
  std::vector<std::string> texts;
  for (const Value& item : value.items()) texts.push_back(item.as_string());
  return texts;
}

/// `lora_config` of a file of weights.
std::optional<AdapterConfig> config_in_file(const Place& place) {
  const std::string file = checkpoint::join_path(place.path, checkpoint::native::model_file(0, 0));
  if (!place.storage->exists(file)) return std::nullopt;
  const checkpoint::TorchFileReader reader(place.storage->open(file));
  const Value* section = reader.root().find(Value("lora_config"));
  if (section == nullptr || !section->is_dict()) return std::nullopt;
  AdapterConfig saved;
  saved.file = reader.name() + ": lora_config";
  saved.rank = static_cast<int>(section->at("lora_rank").as_int());
  saved.alpha = section->at("lora_alpha").as_double();
  saved.dropout = section->at("lora_dropout").as_double();
  saved.use_rslora = section->at("use_rslora").as_bool();
  saved.bias = section->at("bias").as_string();
  const Value& targets = section->at("target_modules");
  if (targets.is_string())
    saved.target_regex = targets.as_string();
  else
    saved.targets = texts_of(targets);
  saved.modules_to_save = texts_of(section->at("modules_to_save"));
  return saved;
}

AdapterConfig saved_config(const Place& place, const std::string& folder) {
  if (place.storage->exists(kAdapterConfigFile))
    return parse_adapter_config(place.storage->read_text(kAdapterConfigFile, kMostConfigBytes),
                                folder + "/" + kAdapterConfigFile);
  if (auto saved = config_in_file(place)) return *std::move(saved);
  throw ConfigError("lora_config.lora_save_dir: " + place.address() +
                    ": expected lora_config in its files of weights, or " + kAdapterConfigFile +
                    " in " + folder + ", found neither; correct the folder");
}

std::string text_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}
std::string text_of(const std::string& text) { return text; }
std::string text_of(double number) { return c10::str(number); }

/// Takes what was saved, and says so where it is something else.
template <class T, class U>
void take(T& own, const std::optional<U>& saved, const char* key, const std::string& file) {
  if (!saved || own == static_cast<T>(*saved)) return;
  log_warning(c10::str("lora_config.", key, ": ", text_of(static_cast<T>(*saved)), ", as ", file,
                       " says, in place of ", text_of(own)));
  own = static_cast<T>(*saved);
}

}  // namespace

Place adapter_place(const std::string& folder, const std::string& tag) {
  const auto storage = checkpoint::open_storage(folder);
  if (!tag.empty()) return {storage, tag};
  const auto newest = checkpoint::CheckpointFolder(storage, "").newest();
  if (!newest)
    throw ConfigError("lora_config.lora_save_dir: " + folder +
                      ": expected a complete checkpoint of adapters, found none; correct the "
                      "folder, or set load_lora_from_ckpt to false");
  return {storage, newest->tag};
}

LoraConfig with_saved_numbers(LoraConfig config) {
  const Place place = adapter_place(config.lora_save_dir, config.lora_load_tag);
  const AdapterConfig saved = saved_config(place, config.lora_save_dir);
  take(config.lora_rank, saved.rank, "lora_rank", saved.file);
  take(config.lora_alpha, saved.alpha, "lora_alpha", saved.file);
  take(config.lora_dropout, saved.dropout, "lora_dropout", saved.file);
  take(config.use_rslora, saved.use_rslora, "use_rslora", saved.file);
  take(config.bias, saved.bias, "bias", saved.file);
  if (saved.modules_to_save)
    take(config.modules_to_save, saved.modules_to_save, "modules_to_save", saved.file);
  const bool had_targets = !config.target_modules.empty() || !config.target_modules_regex.empty();
  if (!saved.target_regex.empty()) {
    config.target_modules.clear();
    config.target_modules_regex = saved.target_regex;
  } else if (saved.targets) {
    config.target_modules_regex.clear();
    if (had_targets)
      take(config.target_modules, saved.targets, "target_modules", saved.file);
    else
      config.target_modules = *saved.targets;
  }
  return config;
}

}  // namespace trellis::trainer
