#include "trainer/nxd/lora_checkpoints.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "runtime/ranks/world.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/checkpoint/state/merged_weights.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/checkpoint/training/lora_config.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/nxd/rank_files.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {
namespace {

using checkpoint::LiveState;
using checkpoint::LiveTensor;
using checkpoint::Place;
using checkpoint::TensorEntry;
using checkpoint::Value;
using checkpoint::native::NativeSource;

constexpr std::int64_t kMostConfigBytes = 1 << 20;

/// The checkpoint that the configuration names.
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

void load_adapters(runtime::RankContext& rank, NxDModel& model) {
  const at::NoGradGuard no_grad;
  const LoraSection& lora = *model.lora();
  const NativeSource source(adapter_place(lora.folder, lora.tag));
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : source.tensors()) entries.emplace(entry.key, &entry);
  const LiveState live =
      checkpoint::trained_part(model.parameter_list(), live_state_of(model, nullptr));
  Problems problems;
  for (const LiveTensor& tensor : live.model) {
    for (const checkpoint::ShardedPart& part : tensor.parts) {
      const auto found = entries.find(part.tensor.key);
      if (found == entries.end() || found->second->shape != part.tensor.global_shape) {
        problems.add(source.address(),
                     part.tensor.key + ": expected the shape " +
                         checkpoint::text_of(part.tensor.global_shape) + ", got " +
                         (found == entries.end() ? std::string("none")
                                                 : checkpoint::text_of(found->second->shape)));
        continue;
      }
      at::Tensor values =
          at::empty(part.tensor.local_shape,
                    at::TensorOptions().dtype(checkpoint::scalar_type_of(found->second->dtype)));
      source.read(*found->second, {part.tensor.global_offset, part.tensor.local_shape},
                  {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
      checkpoint::box_of(tensor.values, part.local.offset, part.local.shape).copy_(values);
    }
  }
  problems.throw_if_any();
  rank.host_barrier(checkpoint::kStorageTimeout);
}

LiveState saved_with_adapters(const NxDModel& model, LiveState live) {
  const LoraSection* lora = model.lora();
  if (lora == nullptr) return live;
  if (lora->merge) return {checkpoint::merged_weights(live.model, lora->scale()), {}};
  return lora->save_base ? live : checkpoint::trained_part(model.parameter_list(), std::move(live));
}

bool is_trained_key(const LoraSection& lora, const std::string& key) {
  Parameter parameter;
  parameter.name = key;
  parameter.adapter =
      key.find(".lora_A.") != std::string::npos || key.find(".lora_B.") != std::string::npos;
  return is_trained(lora, parameter);
}

Value lora_config_in_file(const NxDModel* model) {
  const LoraSection* lora = model == nullptr ? nullptr : model->lora();
  if (lora == nullptr || lora->merge || !lora->config_in_file) return {};
  return checkpoint::lora_config_value(*lora);
}

void write_adapter_config(const NxDModel* model, checkpoint::Storage& folder) {
  const LoraSection* lora = model == nullptr ? nullptr : model->lora();
  if (lora == nullptr || lora->merge || lora->config_in_file) return;
  folder.write_text(kAdapterConfigFile, checkpoint::lora_config(*lora).dump(2) + "\n");
}

}  // namespace trellis::trainer
