#include "trainer/checkpoint/training/find_adapter.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/files/checkpoint/adapters/peft_source.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/conversion/saved_config.h"
#include "trainer/files/checkpoint/formats/full/full_source.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {
namespace {

using trainer::AdapterConfig;
using trainer::LoraSection;
using trainer::RunConfig;

constexpr const char* kPeft = "model_alignment_strategy.peft.";
constexpr std::int64_t kMostConfigBytes = 1 << 20;

/// Null: none is here.
std::unique_ptr<TensorSource> source_at(const Place& place, const RunConfig& config) {
  if (adapters::PeftSource::is_at(place)) return std::make_unique<adapters::PeftSource>(place);
  if (place.has(kAdapterFile))
    return std::make_unique<full::FullSource>(
        Place{place.storage, join_path(place.path, kAdapterFile)});
  if (place.has(native::kManifestFile)) return std::make_unique<native::NativeSource>(place);
  if (nxd::is_nxd_folder(place)) return open_nxd(place, config, NxdPart::kTrained);
  return nullptr;
}

/// NxD's rule: when `done` was written. "": there is none.
std::string newest_of_nxd(const Place& folder) {
  std::pair<std::int64_t, std::string> newest{-1, ""};
  if (!folder.storage->exists(folder.path)) return "";
  for (const Entry& entry : folder.storage->list(folder.path, false)) {
    if (!entry.is_directory || !nxd::is_nxd_folder({folder.storage, entry.path})) continue;
    for (const Entry& file : folder.storage->list(entry.path, false)) {
      if (file.path.ends_with(std::string("/") + native::kDoneFile))
        newest = std::max(newest, {file.modified_ns, entry.path});
    }
  }
  return newest.second;
}

std::unique_ptr<TensorSource> newest_in(const Place& folder, const RunConfig& config) {
  const CheckpointFolder saved(open_storage(folder.address()));
  if (const std::optional<KeptCheckpoint> newest = saved.newest())
    return std::make_unique<native::NativeSource>(Place{saved.shared_storage(), newest->tag});
  const std::string path = newest_of_nxd(folder);
  return path.empty() ? nullptr : source_at({folder.storage, path}, config);
}

/// Compares one number of the files with the configuration's.
template <typename T>
void compare(Problems& problems, const char* key, const std::string& file,
             const std::optional<T>& saved, const T& configured) {
  if (!saved || *saved == configured) return;
  problems.add(std::string(kPeft) + key,
               fmt::format("expected {}, as {} says, got {}; write that, or leave the key out",
                           *saved, file, configured));
}

std::string list_of(std::vector<std::string> names) {
  std::ranges::sort(names);
  return fmt::format("[{}]", fmt::join(names, ", "));
}

void check(const AdapterConfig& saved, const LoraSection& lora) {
  Problems problems;
  compare(problems, "lora_rank", saved.file, saved.rank, lora.rank);
  compare(problems, "lora_alpha", saved.file, saved.alpha, lora.alpha);
  compare(problems, "use_rslora", saved.file, saved.use_rslora, lora.use_rslora);
  compare(problems, "lora_bias", saved.file, saved.bias, lora.bias);
  if (saved.modules_to_save && saved.modules_to_save->empty() != lora.modules_to_save.empty())
    compare(problems, "modules_to_save", saved.file, std::optional(list_of(*saved.modules_to_save)),
            list_of(lora.modules_to_save));
  problems.throw_if_any();
}

AdapterConfig config_of_training(const TensorSource& source) {
  const RunConfig training = config_of(source, "", {});
  AdapterConfig saved;
  saved.file = "the configuration of " + source.address();
  if (!training.model.lora) return saved;
  const LoraSection& lora = *training.model.lora;
  saved.rank = lora.rank;
  saved.alpha = lora.alpha;
  saved.use_rslora = lora.use_rslora;
  saved.bias = lora.bias;
  return saved;
}

/// `lora_config` of a file of NxD.
std::optional<AdapterConfig> config_in_file(const Place& place) {
  const std::string file = place.has(kAdapterFile) ? kAdapterFile : native::model_file(0, 0);
  if (!place.has(file)) return std::nullopt;
  const TorchFileReader reader(place.storage->open(join_path(place.path, file)),
                               nxd::known_classes());
  const Value* section = reader.root().find(Value("lora_config"));
  if (section == nullptr || !section->is_dict()) return std::nullopt;
  AdapterConfig saved;
  saved.file = reader.name() + ": lora_config";
  const auto find = [&](const char* key) {
    const Value* value = section->find(Value(key));
    return value != nullptr && !value->is_none() ? value : nullptr;
  };
  if (const Value* rank = find("lora_rank")) saved.rank = static_cast<int>(rank->as_int());
  if (const Value* alpha = find("lora_alpha")) saved.alpha = alpha->as_double();
  if (const Value* stabilised = find("use_rslora")) saved.use_rslora = stabilised->as_bool();
  if (const Value* bias = find("bias")) saved.bias = bias->as_string();
  return saved;
}

/// Checks adapter_config.json of the folder, or of the folder around it.
void check_config(const Place& folder, const Place& place, const TensorSource& source,
                  const RunConfig& config) {
  const LoraSection& lora = *config.model.lora;
  for (const Place& each : {place, folder}) {
    if (!each.has(trainer::kAdapterConfigFile)) continue;
    const std::string path = join_path(each.path, trainer::kAdapterConfigFile);
    const AdapterConfig saved =
        trainer::parse_adapter_config(each.storage->read_text(path, kMostConfigBytes),
                                      join_path(each.address(), trainer::kAdapterConfigFile));
    check(saved, lora);
    const std::string& base = config.exp_manager.checkpoints.resume_from_checkpoint;
    const auto last = [](const std::string& name) {
      return std::filesystem::path(name).lexically_normal().filename();
    };
    if (!saved.base_model.empty() && !base.empty() && last(saved.base_model) != last(base))
      log_warning(
          fmt::format("{}: base_model_name_or_path is {}, and training starts from {}: "
                      "adapters fit the weights that they were trained on alone",
                      saved.file, saved.base_model, base));
    return;
  }
  const auto* native = dynamic_cast<const native::NativeSource*>(&source);
  if (native != nullptr && native->is_ours()) return check(config_of_training(source), lora);
  if (const std::optional<AdapterConfig> saved = config_in_file(place)) check(*saved, lora);
}

}  // namespace

std::unique_ptr<TensorSource> find_adapter(const RunConfig& config) {
  const LoraSection& lora = *config.model.lora;
  const Place folder = open_place(lora.folder);
  Place place = folder;
  if (!lora.tag.empty()) place.path = join_path(folder.path, lora.tag);
  std::unique_ptr<TensorSource> source = source_at(place, config);
  if (source == nullptr) source = newest_in(place, config);
  if (source == nullptr)
    throw ConfigError(fmt::format(
        "{}{}: {}: expected saved adapters: {} of PEFT, {} of NxD, or a complete checkpoint of "
        "either program, found none; correct the path, or set load_lora_from_ckpt to false",
        kPeft, lora.tag.empty() ? "lora_save_dir" : "lora_load_tag", place.address(),
        "adapter_model.safetensors", kAdapterFile));
  check_config(folder, place, *source, config);
  if (config.exp_manager.checkpoints.resume_from_checkpoint.empty())
    log_warning(source->address() +
                ": adapters on random base weights: name those that they were trained on with "
                "--init-from");
  return source;
}

}  // namespace trellis::checkpoint
