#include "trainer/checkpoint/training/find_resume.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/files/checkpoint/conversion/format_table.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_training.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {
namespace {

using trainer::CheckpointSection;
using trainer::LrScheduler;
using trainer::RunConfig;

using LoaderPtr = std::unique_ptr<native::Loader>;

/// Null: there is none.
LoaderPtr newest_of(const std::string& folder, int world_size) {
  const CheckpointFolder checkpoints(open_storage(folder));
  if (const auto unreadable = checkpoints.newest_unreadable())
    throw native::DamagedCheckpoint({checkpoints.shared_storage(), unreadable->tag},
                                    unreadable->problem);
  const std::optional<KeptCheckpoint> newest = checkpoints.newest();
  if (!newest) return nullptr;
  try {
    return std::make_unique<native::Loader>(checkpoints.shared_storage(), newest->tag, world_size);
  } catch (const ConfigError& error) {
    throw native::DamagedCheckpoint({checkpoints.shared_storage(), newest->tag}, error.what());
  }
}

/// The folder that Megatron's file of the newest iteration names; none: there is no such file.
std::optional<Place> tracked_iteration(const Place& folder) {
  if (!folder.has(megatron::kTrackerFile)) return std::nullopt;
  std::string text = folder.storage->read_text(join_path(folder.path, megatron::kTrackerFile), 64);
  std::erase_if(text, [](char each) { return each == '\n' || each == '\r' || each == ' '; });
  std::int64_t iteration = -1;
  const char* const end = text.data() + text.size();
  const bool is_number = std::from_chars(text.data(), end, iteration).ptr == end && iteration >= 0;
  if (!is_number && text != "release")
    throw ConfigError(folder.address() + "/" + megatron::kTrackerFile +
                      ": expected a number of iterations or \"release\", got \"" +
                      terminal_line(text) + "\"; name a checkpoint");
  const std::string name = is_number ? megatron::iteration_folder(iteration) : text;
  if (!folder.has(name))
    throw ConfigError(folder.address() + "/" + megatron::kTrackerFile + ": names " + name +
                      ", which is not there; name a checkpoint");
  return Place{folder.storage, join_path(folder.path, name)};
}

/// The newest complete one of NxD's or Megatron's in a folder: by the step of its name, then by the
/// time of its mark.
std::optional<Place> newest_foreign(const Place& folder) {
  if (auto tracked = tracked_iteration(folder)) return tracked;
  std::optional<Place> newest;
  std::tuple<std::int64_t, std::int64_t, std::string> best;
  if (!folder.storage->exists(folder.path)) return newest;
  for (const Entry& entry : folder.storage->list(folder.path, /*recursive=*/false)) {
    if (!entry.is_directory) continue;
    Place place{folder.storage, entry.path};
    if (!nxd::is_nxd_folder(place) || !place.has(native::kDoneFile)) continue;
    std::int64_t time = 0;
    for (const Entry& file : folder.storage->list(entry.path, /*recursive=*/false)) {
      if (file.path.ends_with(std::string("/") + native::kDoneFile)) time = file.modified_ns;
    }
    std::tuple rank(nxd::numbers_of_name(entry.path).step, time, entry.path);
    if (newest && rank < best) continue;
    best = std::move(rank);
    newest = std::move(place);
  }
  return newest;
}

/// Null: there is none of another program.
std::unique_ptr<TensorSource> foreign_checkpoint(const Place& place, const RunConfig& config) {
  const bool weights_only = config.model.weight_init_only;
  if (nxd::is_nxd_folder(place))
    return open_nxd(place, config, weights_only ? NxdPart::kWeights : NxdPart::kAll);
  for (const Format& format : format_table()) {
    if (std::string_view(format.name) != "trellis" && format.is_at(place))
      return format.open(place);
  }
  return nullptr;
}

/// ReduceLROnPlateau's; others are functions of the step.
std::optional<LrScheduler::State> schedule_of(const Place& place) {
  if (!nxd::is_nxd_folder(place)) return std::nullopt;
  const std::optional<Value> value =
      nxd::read_training(place, *nxd::find_nxd_folder(place)).scheduler;
  if (!value || value->find("num_bad_epochs") == nullptr) return std::nullopt;
  try {
    const Value* rates = value->find("_last_lr");
    if (rates == nullptr || rates->items().empty()) return std::nullopt;
    const Value* epochs = value->find("epochs");  // ours; torch's steps are epochs
    return LrScheduler::State{
        value->at("best").as_double(),
        epochs != nullptr ? epochs->as_int() : value->at("last_epoch").as_int(),
        value->at("num_bad_epochs").as_int(), value->at("cooldown_counter").as_int(),
        rates->items().front().as_double()};
  } catch (const ConfigError& error) {
    throw ConfigError(place.address() + ": state of the schedule: " + error.what());
  }
}

/// The step after which a training continues; none: only the weights are taken.
std::optional<std::int64_t> step_of(std::int64_t saved, const RunConfig& config) {
  return config.model.weight_init_only ? std::nullopt : std::optional(saved);
}

/// Where a training of another program was. Throws ConfigError when a training cannot go on.
trainer::ResumePoint point_of(const TensorSource& source, const RunConfig& config) {
  const std::string where = "exp_manager.resume_from_checkpoint: " + source.address();
  const bool has_states = std::ranges::any_of(source.tensors(), [](const TensorEntry& entry) {
    return !parse_state_key(entry.key).state.empty();
  });
  if (!has_states)
    throw ConfigError(where + ": a checkpoint of the format " + source.format() +
                      " without optimizer states: expected them for a training that goes on; take "
                      "its weights alone with --init-from (model.weight_init_only)");
  const SavedPoint point = source.point();
  if (point.step == 0)
    throw ConfigError(where +
                      ": does not say after which step it was saved: expected it in its "
                      "user_content.pt or common.pt, or in the folder's name (\"step=5\")");
  return {point.step, consumed_samples_of(source, config)};
}

bool has_states(const SourceIndex& index) {
  return std::ranges::any_of(
      index, [](const auto& item) { return !parse_state_key(item.first).state.empty(); });
}

Resume resume_of(LoaderPtr loader, const RunConfig& config) {
  const native::Manifest& manifest = loader->manifest();
  if (!config.model.weight_init_only && manifest.step == 0 && has_states(loader->index()))
    throw ConfigError(loader->address() +
                      ": was made from a checkpoint that does not say after which step it was "
                      "saved: with its optimizer's states a training would begin at step 1; take "
                      "its weights alone with --init-from");
  const std::optional<Value> content = loader->value_of(native::kUserContentFile);
  check_saved_configuration(content ? saved_configuration(*content) : "",
                            loader->address() + "/" + native::kUserContentFile, config,
                            step_of(manifest.step, config));
  Resume resume{.loader = std::move(loader)};
  if (!config.model.weight_init_only) resume.point = {manifest.step, manifest.consumed_samples};
  return resume;
}

/// A folder of NxD may be one of this program's, without the manifest.
void check_foreign(const Place& place, const TensorSource& source, const RunConfig& config) {
  const std::optional<std::int64_t> step = step_of(source.point().step, config);
  const auto folder = nxd::find_nxd_folder(place);
  if (!folder) return check_saved_model(source, config, step);
  check_saved_configuration(saved_configuration(nxd::read_training(place, *folder).content),
                            source.address(), config, step);
}

/// None: it is no checkpoint of another program.
std::optional<Resume> resume_of_foreign(const Place& folder, const RunConfig& config) {
  const Place place = native::with_checksums(folder);
  std::unique_ptr<TensorSource> source = foreign_checkpoint(place, config);
  if (!source) return std::nullopt;
  check_foreign(place, *source, config);
  Resume resume;
  if (!config.model.weight_init_only) {
    resume.point = point_of(*source, config);
    resume.schedule = schedule_of(place);
  }
  resume.foreign = std::make_unique<SourceLoader>(std::move(source), config.world_size());
  return resume;
}

Resume named_checkpoint(const std::string& address, const RunConfig& config) {
  const int world_size = config.world_size();
  const Place place = native::with_checksums(open_place(address));
  if (place.has(native::kManifestFile) ||
      (place.has(native::kBeginFile) && !nxd::is_nxd_folder(place)))
    return resume_of(std::make_unique<native::Loader>(place.storage, place.path, world_size),
                     config);
  if (auto resume = resume_of_foreign(place, config)) return *std::move(resume);
  if (LoaderPtr newest = newest_of(address, world_size))
    return resume_of(std::move(newest), config);
  if (const auto newest = newest_foreign(place)) {
    if (auto resume = resume_of_foreign(*newest, config)) return *std::move(resume);
  }
  throw ConfigError("exp_manager.resume_from_checkpoint: " + address +
                    ": expected a checkpoint, or a folder with a complete one, found neither; "
                    "correct the path");
}

}  // namespace

std::int64_t consumed_samples_of(const TensorSource& source, const RunConfig& config) {
  const SavedPoint point = source.point();
  if (point.consumed_samples > 0 || point.step == 0) return point.consumed_samples;
  log_warning(source.address() +
              ": does not say how many samples were consumed: taken as step × "
              "data.global_batch_size");
  return point.step * config.data.global_batch_size;
}

const std::string& address_of(const Resume& resume) {
  return resume.foreign ? resume.foreign->source().address() : resume.loader->address();
}

std::map<std::string, DType> stored_types(const Resume& resume) {
  std::map<std::string, DType> types;
  if (resume.foreign) {
    for (const TensorEntry& entry : resume.foreign->source().tensors())
      types.emplace(entry.key, entry.dtype);
  } else {
    for (const auto& [key, parts] : resume.loader->index())
      types.emplace(key, resume.loader->dtype_of(parts.front().tensor));
  }
  return types;
}

void refuse_unused_weights(const Resume& resume, runtime::RankContext& rank, NameUnion& names,
                           const std::vector<LiveTensor>& wanted, const RunConfig& config) {
  std::set<std::string> asked;
  for (const LiveTensor& tensor : wanted) {
    for (const ShardedPart& part : tensor.parts)
      asked.insert(parse_state_key(part.tensor.key).weight);
  }
  const std::set<std::string>& all = names.of(rank, std::move(asked));
  std::vector<std::string> stored;
  std::set<std::string> missing = all;
  for (const auto& [key, type] : stored_types(resume)) {
    missing.erase(parse_state_key(key).weight);
    stored.push_back(key);
  }
  judge_unused_weights(unused_weights(stored, all), address_of(resume), config,
                       /*speaks=*/rank.rank() == 0, {missing.begin(), missing.end()});
}

void load(const Resume& resume, runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
          Readers readers) {
  resume.foreign ? resume.foreign->load(rank, wanted, readers)
                 : resume.loader->load(rank, wanted, readers);
}

std::optional<Resume> find_resume(const RunConfig& config, const std::string& folder) {
  const CheckpointSection& section = config.exp_manager.checkpoints;
  if (!section.resume_from_checkpoint.empty())
    return named_checkpoint(section.resume_from_checkpoint, config);
  if (!section.resume_if_exists) return std::nullopt;
  if (LoaderPtr loader = newest_of(folder, config.world_size()))
    return resume_of(std::move(loader), config);
  // The run's folder may be one that NxDT began.
  if (const auto newest = newest_foreign({open_storage(folder), ""})) {
    if (auto resume = resume_of_foreign(*newest, config)) return resume;
  }
  const std::string text =
      "exp_manager.resume_if_exists: " + folder + " has no complete checkpoint";
  if (!section.resume_ignore_no_checkpoint)
    throw ConfigError(text +
                      "; correct the folder, or set exp_manager.resume_ignore_no_checkpoint to "
                      "start a new training");
  log_warning(text + ": training starts from the beginning (resume_ignore_no_checkpoint)");
  return std::nullopt;
}

}  // namespace trellis::checkpoint
