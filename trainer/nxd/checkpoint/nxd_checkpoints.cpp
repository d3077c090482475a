#include "trainer/nxd/checkpoint/nxd_checkpoints.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/log.h"
#include "base/output_error.h"
#include "trainer/checkpoint/engine/zero1_dcp.h"
#include "trainer/checkpoint/training/user_content.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/lifecycle/save_outcome.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/nxd/lora_checkpoints.h"
#include "trainer/nxd/rank_files.h"

namespace trellis::trainer {
namespace {

using checkpoint::KeptCheckpoint;
using checkpoint::LiveState;
using checkpoint::LiveTensor;
using checkpoint::SourceIndex;
using checkpoint::native::FileJob;
using checkpoint::native::Manifest;

constexpr int kMostWorkers = 32;

void check_common(const char* call, int num_workers, Problems& problems) {
  if (num_workers < 1 || num_workers > kMostWorkers)
    problems.add(call, "num_workers: expected 1 to 32, got " + std::to_string(num_workers));
}

void check_zero1_dcp(const char* call, const SaveCheckpointArguments& arguments,
                     Problems& problems) {
  if (!arguments.use_zero1_dcp) return;
  if (!arguments.async_save)
    problems.add(call, "use_zero1_dcp: expected async_save too, as in NxD");
  if (arguments.avoid_saving_lower_precision_weights)
    problems.add(call,
                 "use_zero1_dcp: expected without avoid_saving_lower_precision_weights, as in NxD");
  if (arguments.optimizer == nullptr || !arguments.optimizer->zero1_optimizer().is_sharded())
    problems.add(call,
                 "use_zero1_dcp: expected an optimizer with optimizer_config.zero_one_enabled: its "
                 "states are what it is about");
}

void check(const SaveCheckpointArguments& arguments) {
  constexpr const char* kCall = "save_checkpoint";
  Problems problems;
  check_common(kCall, arguments.num_workers, problems);
  check_zero1_dcp(kCall, arguments, problems);
  const bool has_dict = arguments.model_dict != nullptr || arguments.optimizer_dict != nullptr;
  if (arguments.optimizer != nullptr && arguments.model == nullptr)
    problems.add(kCall, "optimizer: expected its model too, which says what its states are of");
  if (has_dict && arguments.model == nullptr && arguments.parallel == nullptr)
    problems.add(kCall, "parallel: expected with dicts, whose files have the names of ranks");
  if ((arguments.model != nullptr && arguments.model_dict != nullptr) ||
      (arguments.optimizer != nullptr && arguments.optimizer_dict != nullptr))
    problems.add(kCall, "model_dict, optimizer_dict: expected in place of the object, got both");
  if (arguments.tag.empty() && arguments.optimizer == nullptr)
    problems.add(kCall, "tag: expected a name, got none, and no optimizer that counts steps");
  if (const auto kept = arguments.num_kept_ckpts; kept && *kept != -1 && *kept < 1)
    problems.add(kCall,
                 "num_kept_ckpts: expected -1 (all), or 1 or more, got " + std::to_string(*kept));
  if (arguments.optimizer != nullptr && arguments.model != nullptr &&
      arguments.model->lora() != nullptr && arguments.model->lora()->merge)
    problems.add(kCall,
                 "optimizer: with lora_config.merge_lora no adapters are saved that its states "
                 "would be of: expected the model alone");
  if (arguments.zero1_optimizer && arguments.optimizer_dict == nullptr)
    problems.add(kCall,
                 "zero1_optimizer: expected with optimizer_dict; an optimizer says so itself");
  if (arguments.avoid_saving_lower_precision_weights &&
      (arguments.optimizer == nullptr ||
       !*arguments.model->config().mixed_precision_config.use_master_weights_in_ckpt))
    problems.add(kCall,
                 "avoid_saving_lower_precision_weights: expected an optimizer, and "
                 "mixed_precision_config.use_master_weights_in_ckpt: the weights are read from "
                 "its masters");
  problems.throw_if_any();
}

std::string tag_of(const SaveCheckpointArguments& arguments) {
  return arguments.tag.empty() ? "step_" + std::to_string(arguments.optimizer->steps())
                               : arguments.tag;
}

/// The part of `live` that is saved: masters only if the configuration asks for them.
LiveState saved_part(LiveState live, const NxDConfig& config) {
  if (!*config.mixed_precision_config.use_master_weights_in_ckpt)
    std::erase_if(live.optimizer, [](const LiveTensor& tensor) {
      return tensor.state == checkpoint::kMasterState;
    });
  return live;
}

void append(std::vector<FileJob>& jobs, std::vector<FileJob> more) {
  std::ranges::move(more, std::back_inserter(jobs));
}

/// The files of this rank, and in `shards` what they are of the whole model.
std::vector<FileJob> jobs_of(const SaveCheckpointArguments& arguments, int rank,
                             std::vector<checkpoint::ShardedTensor>& shards) {
  const ParallelState& parallel =
      arguments.model != nullptr ? arguments.model->parallel() : *arguments.parallel;
  checkpoint::native::FileOptions options{.use_xser = arguments.use_xser};
  options.masters_replace_weights = arguments.avoid_saving_lower_precision_weights;
  options.zero1_dcp = arguments.use_zero1_dcp;
  options.lora_config = lora_config_in_file(arguments.model);
  std::vector<FileJob> jobs;
  if (arguments.model != nullptr) {
    const NeuronZero1Optimizer* optimizer =
        arguments.optimizer == nullptr ? nullptr : &arguments.optimizer->zero1_optimizer();
    const LiveState live = saved_with_adapters(
        *arguments.model,
        saved_part(live_state_of(*arguments.model, optimizer), arguments.model->config()));
    const auto place = file_place(parallel, rank, optimizer != nullptr && optimizer->is_sharded());
    const auto masters = optimizer == nullptr
                             ? std::set<std::string>{}
                             : checkpoint::native::weights_with_masters(live, *optimizer);
    append(jobs, checkpoint::native::model_jobs(live, place, options, masters));
    if (optimizer != nullptr)
      append(jobs, checkpoint::native::optimizer_jobs(live, *optimizer, arguments.optimizer->lr(),
                                                      place, options));
    for (const auto* list : {&live.model, &live.optimizer}) {
      for (const LiveTensor& tensor : *list) {
        for (const auto& part : tensor.parts) shards.push_back(part.tensor);
      }
    }
  }
  if (arguments.model_dict == nullptr && arguments.optimizer_dict == nullptr) return jobs;
  const DictFiles files = dict_files(parallel, rank, arguments.zero1_optimizer);
  if (arguments.model_dict != nullptr)
    append(jobs, checkpoint::native::dict_jobs(files.model, {{"", *arguments.model_dict}}, {},
                                               files.copies, options));
  if (arguments.optimizer_dict != nullptr)
    append(jobs, checkpoint::native::dict_jobs(
                     files.optimizer, {{"", *arguments.optimizer_dict}}, {},
                     arguments.zero1_optimizer ? std::vector<int>{rank} : files.copies, options));
  return jobs;
}

bool is_state(const std::string& key) { return !checkpoint::parse_state_key(key).state.empty(); }

/// As lora_config without save_lora_base saves.
bool holds_adapters_alone(const LoraSection* lora, const SourceIndex& index) {
  return lora != nullptr && std::ranges::all_of(index, [&](const auto& item) {
           return is_state(item.first) || is_trained_key(*lora, item.first);
         });
}

}  // namespace

NxDCheckpoints::NxDCheckpoints(const std::string& checkpoint_dir, int world_size,
                               runtime::ProcessLink* link)
    : folder_(checkpoint::open_storage(checkpoint_dir), /*suffix=*/""),
      saver_(folder_.shared_storage(), world_size, {}, link, "save_checkpoint"),
      names_(world_size, "load_checkpoint") {
  if (link == nullptr || link->process() == 0) folder_.clean_up();
}

void NxDCheckpoints::once(runtime::RankContext& rank, const std::function<void()>& body) {
  rank.process_barrier(checkpoint::kStorageTimeout);
  if (rank.leads_process()) body();
  rank.process_barrier(checkpoint::kStorageTimeout);
}

void NxDCheckpoints::throw_failure(runtime::RankContext& rank) {
  rank.process_barrier(checkpoint::kStorageTimeout);
  const std::string failure = failure_;
  once(rank, [this] { failure_.clear(); });
  if (!failure.empty()) throw OutputError(failure);
}

checkpoint::native::SaveHead NxDCheckpoints::head(const SaveCheckpointArguments& arguments) {
  checkpoint::native::SaveHead head;
  head.tag = tag_of(arguments);
  const auto is_same = [&](const KeptCheckpoint& kept) { return kept.tag == head.tag; };
  const std::int64_t sequence = folder_.next_sequence();
  if (std::ranges::any_of(folder_.complete(), is_same)) folder_.remove(head.tag);
  Manifest& manifest = head.manifest;
  manifest.sequence = sequence;
  manifest.step = arguments.optimizer == nullptr ? 0 : arguments.optimizer->steps();
  const ParallelState& parallel =
      arguments.model != nullptr ? arguments.model->parallel() : *arguments.parallel;
  manifest.layout = layout_numbers(parallel, arguments.model);
  head.user_content = arguments.user_content;
  write_adapter_config(arguments.model, folder_.storage());
  if (arguments.scheduler != nullptr)
    head.scheduler = checkpoint::scheduler_value(
        arguments.scheduler->state(),
        {manifest.step, 0, arguments.optimizer == nullptr ? 0 : arguments.optimizer->lr()});
  const KeptCheckpoint kept{head.tag, manifest.step, sequence, std::nullopt};
  const checkpoint::KeepRule rule{arguments.num_kept_ckpts.value_or(-1)};
  head.complete = [this, kept, rule] { checkpoint::keep_saved(folder_, kept, {}, rule); };
  head.failed = [this, kept](const std::string& reason) {
    failure_ = folder_.address() + "/" + kept.tag + ": the checkpoint is not saved: " + reason;
    checkpoint::drop_failed(folder_, kept, reason);
  };
  return head;
}

void NxDCheckpoints::save_checkpoint(runtime::RankContext& rank,
                                     const SaveCheckpointArguments& arguments) {
  rank.together([&] { save(rank, arguments); });
}

void NxDCheckpoints::save(runtime::RankContext& rank, const SaveCheckpointArguments& arguments) {
  const at::NoGradGuard no_grad;
  check(arguments);
  once(rank, [&] {
    saver_.wait();
    saver_.set_options({.async = arguments.async_save,
                        .constant_structure = false,
                        .most_writers = arguments.use_xser ? 0 : arguments.num_workers});
  });
  throw_failure(rank);
  std::vector<checkpoint::ShardedTensor> shards;
  std::vector<FileJob> jobs = jobs_of(arguments, rank.rank(), shards);
  saver_.save(rank, std::move(jobs), shards, [&] { return head(arguments); });
  if (!arguments.async_save) throw_failure(rank);
}

/// Looks again: another process, or program, may have saved it.
std::optional<KeptCheckpoint> NxDCheckpoints::newest_complete() {
  return checkpoint::CheckpointFolder(folder_.shared_storage(), "").newest();
}

bool NxDCheckpoints::has_checkpoint(runtime::RankContext& rank) {
  bool has = false;
  rank.together([&] {
    once(rank, [this] { saver_.wait(); });
    has = newest_complete().has_value();
  });
  return has;
}

void NxDCheckpoints::finalize_checkpoint(runtime::RankContext& rank) {
  rank.together([&] {
    once(rank, [this] { saver_.wait(); });
    throw_failure(rank);
  });
}

void NxDCheckpoints::load_model(runtime::RankContext& rank,
                                const LoadCheckpointArguments& arguments,
                                LoadedCheckpoint& loaded) {
  const bool has_optimizer = arguments.optimizer != nullptr;
  LiveState live = live_state_of(*arguments.model,
                                 has_optimizer ? &arguments.optimizer->zero1_optimizer() : nullptr);
  checkpoint::StoredKeys stored{{}, {}, loader_->address()};
  const SourceIndex& index = loader_->index();
  if (holds_adapters_alone(arguments.model->lora(), index)) {
    live = checkpoint::trained_part(arguments.model->parameter_list(), std::move(live));
    if (rank.rank() == 0)
      log_warning(loader_->address() + ": has adapters alone: the base's weights stay as they are");
  }
  stored.type = [&](const std::string& key) -> std::optional<checkpoint::DType> {
    const auto found = index.find(key);
    if (found == index.end()) return std::nullopt;
    return loader_->dtype_of(found->second.front().tensor);
  };
  for (const auto& [key, parts] : index) {
    if (!is_state(key)) stored.keys.insert(key);
  }
  const auto& mode = checkpoint::load_strictness(arguments.strict ? "raise_all" : "return_all");
  checkpoint::KeyDifference difference =
      checkpoint::reconcile(rank, names_, live.model, stored, mode);
  loaded.missing_keys = std::move(difference.unexpected);
  loaded.unexpected_keys = std::move(difference.missing);
  std::vector<LiveTensor> wanted = std::move(live.model);
  std::ranges::move(live.optimizer, std::back_inserter(wanted));
  loader_->load(rank, wanted);
  if (has_optimizer) arguments.optimizer->continue_after(loader_->manifest().step);
}

LoadedCheckpoint NxDCheckpoints::load_checkpoint(runtime::RankContext& rank,
                                                 const LoadCheckpointArguments& arguments) {
  LoadedCheckpoint loaded;
  rank.together([&] { loaded = load(rank, arguments); });
  return loaded;
}

LoadedCheckpoint NxDCheckpoints::load(runtime::RankContext& rank,
                                      const LoadCheckpointArguments& arguments) {
  constexpr const char* kCall = "load_checkpoint";
  const at::NoGradGuard no_grad;
  Problems problems;
  check_common(kCall, arguments.num_workers, problems);
  if (arguments.use_zero1_dcp && arguments.optimizer == nullptr)
    problems.add(kCall, "use_zero1_dcp: expected an optimizer, whose states it is about");
  if (arguments.optimizer != nullptr && arguments.model == nullptr)
    problems.add(kCall, "optimizer: expected its model too, which says what its states are of");
  const bool has_dict = arguments.model_dict != nullptr || arguments.optimizer_dict != nullptr;
  if (has_dict && arguments.model == nullptr && arguments.parallel == nullptr)
    problems.add(kCall, "parallel: expected with dicts, whose files have the names of ranks");
  problems.throw_if_any();
  LoadedCheckpoint loaded{.tag = arguments.tag};
  once(rank, [&] {
    saver_.wait();
    const auto newest = newest_complete();
    if (arguments.tag.empty() && !newest)
      throw ConfigError(folder_.address() +
                        ": expected a complete checkpoint, found none; correct the folder");
    loader_ = std::make_unique<checkpoint::native::Loader>(
        folder_.shared_storage(), arguments.tag.empty() ? newest->tag : arguments.tag,
        rank.world_size(), arguments.num_workers);
  });
  loaded.tag = loader_->tag();
  if (arguments.use_zero1_dcp &&
      !loader_->manifest().files.contains(checkpoint::native::kStatesMetadataFile))
    throw ConfigError(loader_->address() +
                      ": use_zero1_dcp: expected states in a folder of DCP, found files by rank; "
                      "load it with false");
  if (arguments.model != nullptr && arguments.model_dict == nullptr)
    load_model(rank, arguments, loaded);
  if (has_dict) {
    const ParallelState& parallel =
        arguments.model != nullptr ? arguments.model->parallel() : *arguments.parallel;
    load_dicts({folder_.shared_storage(), loaded.tag}, loader_->manifest(), parallel, rank.rank(),
               arguments.model_dict, arguments.optimizer_dict, arguments.strict);
  }
  if (arguments.scheduler != nullptr) {
    const auto value = loader_->value_of(checkpoint::native::kSchedulerFile);
    if (!value)
      throw ConfigError(loader_->address() + ": has no scheduler.pt; it was saved without one");
    arguments.scheduler->restore(checkpoint::scheduler_state(*value));
  }
  loaded.user_content = loader_->value_of(checkpoint::native::kUserContentFile);
  return loaded;
}

}  // namespace trellis::trainer
