#include "trainer/checkpoint/training/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/output_error.h"
#include "runtime/world.h"
#include "trainer/checkpoint/conversion/format_table.h"
#include "trainer/checkpoint/conversion/layout/open_nxd.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/lifecycle/save_outcome.h"
#include "trainer/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/checkpoint/lifecycle/checkpoint_name.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/storage/place.h"
#include "trainer/checkpoint/training/lora_config.h"
#include "trainer/checkpoint/training/one_device_adapter.h"
#include "trainer/checkpoint/training/user_content.h"
#include "trainer/parallel_layers/fully_sharded.h"
#include "trainer/trainer.h"

namespace trellis::checkpoint {
namespace {

using trainer::CheckpointSection;
using trainer::RunConfig;
using trainer::StepResult;
using trainer::TrainingState;

using LoaderPtr = std::unique_ptr<native::Loader>;

/// Null: there is none.
LoaderPtr newest_of(const std::string& folder, int world_size) {
  const CheckpointFolder checkpoints(open_storage(folder));
  const std::optional<KeptCheckpoint> newest = checkpoints.newest();
  if (!newest) return nullptr;
  return std::make_unique<native::Loader>(checkpoints.shared_storage(), newest->tag, world_size);
}

/// Null: there is none of another program.
std::unique_ptr<TensorSource> foreign_checkpoint(const Place& place) {
  for (const Format& format : format_table()) {
    if (std::string_view(format.name) != "trellis" && format.is_at(place))
      return format.open(place);
  }
  return nullptr;
}

Resume resume_of(LoaderPtr loader, bool weights_only) {
  const native::Manifest& manifest = loader->manifest();
  Resume resume{.loader = std::move(loader)};
  if (!weights_only) resume.point = {manifest.step, manifest.consumed_samples};
  return resume;
}

Resume named_checkpoint(const std::string& address, const RunConfig& config) {
  const int world_size = config.world_size();
  const bool weights_only = config.model.weight_init_only;
  const Place place = open_place(address);
  const bool is_nxd = nxd::is_nxd_folder(place);
  if (place.has(native::kManifestFile) || (place.has(native::kBeginFile) && !is_nxd))
    return resume_of(std::make_unique<native::Loader>(place.storage, place.path, world_size),
                     weights_only);
  const std::string key = "exp_manager.resume_from_checkpoint: " + address;
  if (std::unique_ptr<TensorSource> source =
          is_nxd ? open_nxd(place, config) : foreign_checkpoint(place)) {
    if (weights_only)
      return {.weights = std::make_unique<SourceLoader>(std::move(source), world_size)};
    throw ConfigError(
        key + ": expected a checkpoint of this program, got one of the format " + source->format() +
        "; take its weights alone with --init-from (model.weight_init_only), or convert "
        "it with `trellis checkpoint convert --to native`");
  }
  if (LoaderPtr newest = newest_of(address, world_size))
    return resume_of(std::move(newest), weights_only);
  throw ConfigError(key +
                    ": expected a checkpoint, or a folder with a complete one, found neither; "
                    "correct the path");
}

std::string default_pattern(const RunConfig& config) {
  return config.exp_manager.name + "--{" + config.exp_manager.checkpoints.monitor + ":.4f}-{epoch}";
}

}  // namespace

const std::string& address_of(const Resume& resume) {
  return resume.weights ? resume.weights->source().address() : resume.loader->address();
}

void load(const Resume& resume, runtime::RankContext& rank, const std::vector<LiveTensor>& wanted) {
  resume.weights ? resume.weights->load(rank, wanted) : resume.loader->load(rank, wanted);
}

std::map<std::string, std::int64_t> layout_of(const RunConfig& config) {
  return {{"tp", config.tp()},
          {"pp", config.pp()},
          {"vpp", config.vpp()},
          {"dp", config.dp()},
          {"cp", config.cp()},
          {"ep", config.ep()},
          {"zero1", config.distributed_strategy.zero1 ? 1 : 0},
          {"kv_replicator", config.distributed_strategy.kv_replicator}};
}

std::optional<Resume> find_resume(const RunConfig& config, const std::string& folder) {
  const CheckpointSection& section = config.exp_manager.checkpoints;
  if (!section.resume_from_checkpoint.empty())
    return named_checkpoint(section.resume_from_checkpoint, config);
  if (!section.resume_if_exists) return std::nullopt;
  if (LoaderPtr loader = newest_of(folder, config.world_size()))
    return resume_of(std::move(loader), config.model.weight_init_only);
  const std::string text =
      "exp_manager.resume_if_exists: " + folder + " has no complete checkpoint";
  if (!section.resume_ignore_no_checkpoint)
    throw ConfigError(text +
                      "; correct the folder, or set exp_manager.resume_ignore_no_checkpoint to "
                      "start a new training");
  log_warning(text + ": training starts from the beginning (resume_ignore_no_checkpoint)");
  return std::nullopt;
}

bool needs_checkpoints(const RunConfig& config, const std::optional<Resume>& resume) {
  return config.exp_manager.checkpoints.create || resume ||
         (config.model.lora && config.model.lora->load);
}

RunCheckpoints::RunCheckpoints(const RunConfig& config, const std::string& folder,
                               std::optional<Resume> resume, runtime::ProcessLink* link)
    : config_(config),
      section_(config.exp_manager.checkpoints),
      pattern_(section_.filename.empty() ? default_pattern(config) : section_.filename),
      rule_{section_.save_top_k, section_.mode == "max"},
      resume_(std::move(resume)) {
  if (resume_) resume_point_ = resume_->point;
  const auto& lora = config.model.lora;
  // A training that goes on has its adapters.
  const bool begins = !resume_ || config.model.weight_init_only;
  if (lora && lora->load && begins) adapter_.emplace(config);
  if (!section_.create) return;
  (void)checkpoint_name(pattern_, {}, section_.auto_insert_metric_name);
  folder_.emplace(open_storage(folder));
  if (link == nullptr || link->process() == 0) folder_->clean_up();
  saver_.emplace(folder_->shared_storage(), config.world_size(), section_.async, link);
  if (!lora || lora->load || lora->folder.empty()) return;
  if (lora->one_device)
    one_device_ = open_place(lora->folder);
  else
    adapter_saves_.emplace(config, link);
}

RunCheckpoints::~RunCheckpoints() = default;

std::int64_t RunCheckpoints::restore(const TrainingState& state) {
  restore_training(state);
  if (adapter_) {
    const trainer::FullySharding::Whole whole(state.fully_sharded);
    adapter_->load(state.rank, state.parameters,
                   live_state(state.parameters, state.optimizer, state.parallel));
    if (state.rank.rank() == 0) log_info(adapter_->address() + ": adapters loaded");
  }
  return resume_point_.step;
}

void RunCheckpoints::restore_training(const TrainingState& state) {
  if (!resume_) return;
  const trainer::FullySharding::Whole whole(state.fully_sharded);
  LiveState live = live_state(state.parameters, state.optimizer, state.parallel);
  const bool weights_only = config_.model.weight_init_only;
  std::vector<LiveTensor> wanted = std::move(live.model);
  for (LiveTensor& tensor : live.optimizer) {
    // Masters and averages start with the weights.
    if (!weights_only || tensor.state == "fp32_param" || tensor.state == "ema")
      wanted.push_back(std::move(tensor));
  }
  load(*resume_, state.rank, wanted);
  if (!weights_only)
    restore_user_content(resume_->loader->user_content(), state, resume_->loader->address());
  if (state.rank.rank() == 0)
    log_info(address_of(*resume_) + ": loaded" +
             (weights_only ? ", the weights alone"
                           : "; step " + std::to_string(resume_point_.step) + " is done"));
}

std::int64_t RunCheckpoints::consumed_samples(std::int64_t step) const {
  return resume_point_.consumed_samples +
         (step - resume_point_.step) * config_.data.global_batch_size;
}

bool RunCheckpoints::is_due(const TrainingState& state, std::int64_t step) {
  bool due = section_.every_n_train_steps && step % *section_.every_n_train_steps == 0;
  if (section_.every_n_epochs > 0)
    due = due || step % (state.batches_per_epoch * section_.every_n_epochs) == 0;
  if (section_.train_time_interval_s) {
    const std::chrono::duration<double> elapsed = Clock::now() - last_save_time_;
    due = state.rank.agree(elapsed.count() >= *section_.train_time_interval_s) || due;
  }
  return due;
}

/// Of the metric that ranks checkpoints; none where this step did not measure it.
std::optional<double> RunCheckpoints::metric(std::int64_t step, std::int64_t epoch) const {
  if (section_.monitor == "step") return static_cast<double>(step);
  if (section_.monitor == "epoch") return static_cast<double>(epoch);
  const auto found = scalars_.find(section_.monitor);
  return found == scalars_.end() ? std::nullopt : std::optional(found->second);
}

bool RunCheckpoints::from_first(const TrainingState& state, const std::function<bool()>& ask) {
  const bool is_asked = state.rank.rank() == 0;
  bool answer = false;
  state.rank.host_barrier(kStorageTimeout);
  if (is_asked) {
    saver_->wait();  // it changes the folder
    answer = state.rank.agree(ask());
  }
  state.rank.host_barrier(kStorageTimeout);
  return is_asked ? answer : state.rank.agree(false);  // the first to say it has spoken
}

bool RunCheckpoints::decide(const TrainingState& state, std::int64_t step) {
  if (state.rank.leads_process()) last_save_time_ = Clock::now();
  return from_first(state, [&] {
    return is_worth_keeping(folder_->complete(), metric(step, (step - 1) / state.batches_per_epoch),
                            rule_);
  });
}

void RunCheckpoints::after_step(const TrainingState& state, const StepResult& result) {
  if (!saver_) return;
  if (state.rank.leads_process()) {
    scalars_ = result.scalars;  // rank 0's has the numbers that name a checkpoint
    lr_ = result.lr;
  }
  if (!is_due(state, result.step)) return;
  if (decide(state, result.step)) save(state, result.step, /*last=*/false);
  if (section_.save_last) save(state, result.step, /*last=*/true);
}

void RunCheckpoints::at_end(const TrainingState& state, std::int64_t step) {
  if (!saver_) return;
  const bool is_saved =
      from_first(state, [&] { return last_saved_ == step || step == resume_point_.step; });
  if (!is_saved) save(state, step, /*last=*/true);
  if (state.rank.leads_process()) {
    saver_->wait();
    if (adapter_saves_) adapter_saves_->wait();
  }
  if (state.rank.rank() == 0) {
    const std::string& failure =
        failure_.empty() && adapter_saves_ ? adapter_saves_->failure() : failure_;
    if (!failure.empty()) throw OutputError("the last checkpoint was not saved: " + failure);
  }
  state.rank.host_barrier(kStorageTimeout);
}

std::string RunCheckpoints::name_of(std::int64_t step, std::int64_t epoch) const {
  NameMetrics metrics = scalars_;
  metrics["step"] = static_cast<double>(step);
  metrics["epoch"] = static_cast<double>(epoch);
  return checkpoint_name(pattern_, metrics, section_.auto_insert_metric_name);
}

native::SaveHead RunCheckpoints::content(const TrainingState& state, std::int64_t step) const {
  native::SaveHead head;
  head.manifest.step = step;
  head.manifest.consumed_samples = consumed_samples(step);
  head.manifest.metric = metric(step, (step - 1) / state.batches_per_epoch);
  head.manifest.layout = layout_of(config_);
  head.user_content = user_content_of(state, {step, head.manifest.consumed_samples, lr_});
  return head;
}

native::SaveHead RunCheckpoints::head(const TrainingState& state, std::int64_t step, bool last) {
  native::SaveHead head = content(state, step);
  const CheckpointFolder::FreeTag free =
      folder_->free_tag(name_of(step, (step - 1) / state.batches_per_epoch), last);
  head.tag = free.tag;
  head.manifest.sequence = folder_->next_sequence();
  const KeptCheckpoint kept{head.tag, step, head.manifest.sequence, head.manifest.metric};
  head.complete = [this, replaced = free.replaced, kept, last] { complete(kept, last, replaced); };
  head.failed = [this, kept](const std::string& reason) { failed(kept, reason); };
  return head;
}

void RunCheckpoints::save(const TrainingState& state, std::int64_t step, bool last) {
  const trainer::FullySharding::Whole whole(state.fully_sharded);
  const LiveState live = live_state(state.parameters, state.optimizer, state.parallel);
  const trainer::RankMesh mesh{config_.tp(), config_.pp(), config_.dp(), config_.cp(),
                               config_.ep()};
  const int self = state.rank.rank();
  const native::FilePlace place{place_of(state.parallel, state.optimizer.is_sharded()),
                                state.parallel.get_pipeline_model_parallel_rank(), self,
                                mesh.ranks(trainer::ParallelAxis::kExpertData, self)};
  const native::FileOptions options = file_options(config_);
  std::vector<native::FileJob> jobs = native::model_jobs(live, place, options);
  if (!section_.save_weights_only)
    std::ranges::move(native::optimizer_jobs(live, state.optimizer, lr_, place, options),
                      std::back_inserter(jobs));
  std::vector<ShardedTensor> shards;
  for (const auto* list : {&live.model, &live.optimizer}) {
    for (const LiveTensor& tensor : *list) {
      for (const ShardedPart& part : tensor.parts) shards.push_back(part.tensor);
    }
  }
  saver_->save(state.rank, std::move(jobs), shards, [&] { return head(state, step, last); });
  if (adapter_saves_)
    adapter_saves_->save(
        state, live, place, options, [&] { return content(state, step); },
        name_of(step, (step - 1) / state.batches_per_epoch), last);
}

void RunCheckpoints::complete(const KeptCheckpoint& checkpoint, bool last,
                              const std::vector<std::string>& replaced) {
  failure_.clear();
  if (last) last_saved_ = checkpoint.step;
  log_info(folder_->address() + "/" + checkpoint.tag + ": checkpoint of step " +
           std::to_string(checkpoint.step) + " saved");
  if (one_device_)
    failure_ = save_one_device(config_, {folder_->shared_storage(), checkpoint.tag}, *one_device_);
  keep_saved(*folder_, checkpoint, replaced, rule_);
}

void RunCheckpoints::failed(const KeptCheckpoint& checkpoint, const std::string& reason) {
  failure_ = reason;
  drop_failed(*folder_, checkpoint, reason);
}

}  // namespace trellis::checkpoint
