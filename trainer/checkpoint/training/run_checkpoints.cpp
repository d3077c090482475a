#include "trainer/checkpoint/training/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/output_error.h"
#include "runtime/ranks/world.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/one_device_adapter.h"
#include "trainer/checkpoint/training/save_options.h"
#include "trainer/checkpoint/training/user_content.h"
#include "trainer/config/logged_scalars.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"
#include "trainer/files/checkpoint/lifecycle/save_outcome.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel_layers/fully_sharded.h"

namespace trellis::checkpoint {
namespace {

using trainer::CheckpointSection;
using trainer::RunConfig;
using trainer::StepResult;
using trainer::TrainingState;

std::string default_pattern(const RunConfig& config) {
  return config.exp_manager.name + "--{" + config.exp_manager.checkpoints.monitor + ":.4f}-{epoch}";
}

/// The keys of the checkpoint. `states`: the keys of the optimizer's states must be asked for too.
StoredKeys stored_keys(const Resume& resume, bool states) {
  const auto types = std::make_shared<const std::map<std::string, DType>>(stored_types(resume));
  StoredKeys stored{{}, {}, address_of(resume)};
  for (const auto& [key, type] : *types) {
    if (states || parse_state_key(key).state.empty()) stored.keys.insert(key);
  }
  stored.type = [types](const std::string& key) -> std::optional<DType> {
    const auto found = types->find(key);
    return found == types->end() ? std::nullopt : std::optional(found->second);
  };
  return stored;
}

/// The run that goes on; "": a new one, or one that begins with another's checkpoint.
std::string continued_run(const CheckpointSection& section, const std::optional<Resume>& resume) {
  if (!resume || !resume->loader || !section.resume_from_checkpoint.empty()) return "";
  const std::string& run = resume->loader->manifest().run;
  return run == native::kConversionRun ? "" : run;
}

}  // namespace

std::map<std::string, std::int64_t> layout_of(const RunConfig& config) {
  return {
      {"tp", config.tp()},
      {"pp", config.pp()},
      {"vpp", config.vpp()},
      {"dp", config.dp()},
      {"cp", config.cp()},
      {"ep", config.ep()},
      {"zero1", config.distributed_strategy.zero1 ? 1 : 0},
      {"data_parallel_replicate_size", config.distributed_strategy.data_parallel_replicate_size},
      {"kv_replicator", config.distributed_strategy.kv_replicator}};
}

bool needs_checkpoints(const RunConfig& config, const std::optional<Resume>& resume) {
  return config.exp_manager.checkpoints.create || resume ||
         (config.model.lora && config.model.lora->load);
}

RunCheckpoints::RunCheckpoints(const RunConfig& config, const std::string& folder,
                               std::optional<Resume> resume, runtime::ProcessLink* link,
                               RunIdentity self)
    : config_(config),
      section_(config.exp_manager.checkpoints),
      pattern_(section_.filename.empty() ? default_pattern(config) : section_.filename),
      rule_{section_.save_top_k, section_.mode == "max", section_.save_last_n_optim_states},
      resume_(std::move(resume)),
      names_(config.world_size(), "load") {
  if (resume_) resume_point_ = resume_->point;
  const auto& lora = config.model.lora;
  // A training that goes on has its adapters.
  const bool begins = !resume_ || config.model.weight_init_only;
  if (lora && lora->load && begins) adapter_.emplace(config);
  if (!section_.create) return;
  (void)checkpoint_name(pattern_, {}, section_.auto_insert_metric_name);
  if (const std::string run = continued_run(section_, resume_); !run.empty()) self.run = run;
  run_ = self.run;
  folder_.emplace(open_storage(folder), kCheckpointSuffix, self);
  if (link == nullptr || link->process() == 0) folder_->clean_up();
  saver_.emplace(folder_->shared_storage(), config.world_size(), save_options(config), link);
  if (!lora || lora->load || lora->folder.empty()) return;
  if (lora->one_device)
    one_device_ = open_place(lora->folder);
  else
    adapter_saves_.emplace(config, link, self);
}

RunCheckpoints::~RunCheckpoints() = default;

std::int64_t RunCheckpoints::restore(const TrainingState& state) {
  try {
    restore_training(state);
  } catch (const native::DamagedCheckpoint& damage) {
    const std::scoped_lock lock(mutex_);
    if (!damage_) damage_ = damage;
    throw;
  }
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
  const LoadStrictness& strictness = load_strictness(config_.model.dist_ckpt.load_strictness);
  // Megatron's other modes say themselves what happens to weights that no rank asks for.
  if (!strictness.is_checked) refuse_unused_weights(*resume_, state.rank, names_, wanted, config_);
  reconcile(state.rank, names_, wanted, stored_keys(*resume_, !weights_only), strictness);
  const Clock::time_point begin = Clock::now();
  load(*resume_, state.rank, wanted,
       config_.model.dist_ckpt.parallel_load ? Readers::kOne : Readers::kEach);
  const Clock::time_point loaded = Clock::now();
  if (!weights_only && resume_->loader)
    restore_user_content(resume_->loader->user_content(), state, resume_->loader->address());
  if (!weights_only && resume_->foreign) continue_foreign(state);
  if (section_.recovery_times && state.rank.rank() == 0) log_recovery(begin, loaded);
  if (state.rank.rank() == 0)
    log_info(address_of(*resume_) + ": loaded" +
             (weights_only ? ", the weights alone"
                           : "; step " + std::to_string(resume_point_.step) + " is done"));
}

void RunCheckpoints::log_recovery(Clock::time_point begin, Clock::time_point loaded) const {
  const auto seconds = [](Clock::duration time) {
    return std::to_string(std::chrono::duration<double>(time).count()) + " s";
  };
  log_info(address_of(*resume_) + ": recovery: model built in " + seconds(begin - opened_) +
           ", weights and states loaded in " + seconds(loaded - begin) + ", the rest in " +
           seconds(Clock::now() - loaded));
}

/// Sets the rest of the training's state, which follows from the step and the configuration.
void RunCheckpoints::continue_foreign(const TrainingState& state) const {
  state.optimizer.continue_after(resume_point_.step);
  state.position.step = resume_point_.step;
  if (resume_->schedule) state.scheduler.restore(*resume_->schedule);
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

/// The last value of the metric by which checkpoints are compared; none: it was never measured.
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
    if (rule_.save_top_k == 0) return false;
    const auto number = metric(step, (step - 1) / state.batches_per_epoch);
    if (!number) refuse_without_number(step);
    return number && is_worth_keeping(folder_->complete(), number, rule_);
  });
}

/// As Lightning does: before the first validation its numbers may still come, and no checkpoint
/// can be ranked by them; any other one that is not there never will be.
void RunCheckpoints::refuse_without_number(std::int64_t step) {
  const std::string where = "exp_manager.checkpoint_callback_params.monitor: after step " +
                            std::to_string(step) + " the run has logged no " + section_.monitor;
  if (!trainer::is_of_validation(section_.monitor)) {
    std::string known;
    for (const auto& [tag, value] : scalars_) known += (known.empty() ? "" : ", ") + tag;
    throw ConfigError(where + ", only " + known + "; monitor one of these, or step with mode: max");
  }
  if (!std::exchange(said_no_number_, true))
    log_warning(where +
                ", since it has not validated yet: until then checkpoints are not saved by "
                "it (save_last saves them nevertheless); monitor: step with mode: max "
                "does not need it");
}

void RunCheckpoints::after_step(const TrainingState& state, const StepResult& result) {
  if (!saver_) return;
  if (state.rank.leads_process()) {
    // Rank 0's has the numbers that name a checkpoint; some steps do not validate.
    for (const auto& [tag, value] : result.scalars) scalars_[tag] = value;
    lr_ = result.lr;
  }
  if (!is_due(state, result.step)) return;
  if (decide(state, result.step)) save(state, result.step, /*last=*/false);
  if (section_.save_last) save(state, result.step, /*last=*/true);
}

void RunCheckpoints::at_end(const TrainingState& state, std::int64_t step) {
  if (!saver_) return;
  const bool is_saved = from_first(state, [&] { return has_last(step); });
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

/// True if the end of the run needs no "-last" copy: there is one, or the run continued from a
/// checkpoint elsewhere and took no step.
bool RunCheckpoints::has_last(std::int64_t step) const {
  if (last_saved_ == step) return true;
  if (step != resume_point_.step) return false;
  const bool from_here = resume_ && address_of(*resume_).starts_with(folder_->address() + "/");
  return !from_here || std::ranges::any_of(folder_->complete(), [&](const KeptCheckpoint& kept) {
    return kept.is_last() && kept.step == step;
  });
}

std::string RunCheckpoints::name_of(std::int64_t step, std::int64_t epoch) const {
  NameMetrics metrics = scalars_;
  metrics["consumed_samples"] = static_cast<double>(consumed_samples(step));
  metrics["global_step"] = static_cast<double>(step);
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
  head.manifest.run = run_;
  head.user_content = user_content_of(state, {step, head.manifest.consumed_samples, lr_});
  return head;
}

native::SaveHead RunCheckpoints::head(const TrainingState& state, std::int64_t step, bool last) {
  if (before_save_) before_save_();
  native::SaveHead head = content(state, step);
  const CheckpointFolder::FreeTag free =
      folder_->free_tag(name_of(step, (step - 1) / state.batches_per_epoch), last);
  head.tag = free.tag;
  head.manifest.sequence = folder_->next_sequence();
  const KeptCheckpoint kept{head.tag, step, head.manifest.sequence, head.manifest.metric};
  const SavedPoint point{step, head.manifest.consumed_samples};
  const std::vector<std::string> replaced =
      section_.enable_version_counter ? std::vector<std::string>{} : free.replaced;
  head.complete = [this, replaced, kept, last] { complete(kept, last, replaced); };
  if (saves_torch_dist(config_))
    head.chunks = [this, kept, point](native::Written& written) {
      torch_dist_failure_ =
          finish_torch_dist(config_, {folder_->shared_storage(), kept.tag}, point, written);
    };
  head.failed = [this, kept](const std::string& reason) { failed(kept, reason); };
  return head;
}

void RunCheckpoints::save(const TrainingState& state, std::int64_t step, bool last) {
  const trainer::FullySharding::Whole whole(state.fully_sharded);
  const native::RankContent content{
      state.parameters, state.optimizer, state.parallel,
      live_state(state.parameters, state.optimizer, state.parallel),
      native::file_place_of(
          trainer::make_rank_mesh(trainer::parallel_sizes(config_), config_.world_size()),
          state.parallel, state.rank.rank(), state.optimizer.is_sharded())};
  std::vector<native::FileJob> jobs = checkpoint_jobs(config_, content, {.step = step, .lr = lr_});
  std::vector<ShardedTensor> shards;
  for (const auto* list : {&content.live.model, &content.live.optimizer}) {
    for (const LiveTensor& tensor : *list) {
      for (const ShardedPart& part : tensor.parts) shards.push_back(part.tensor);
    }
  }
  saver_->save(state.rank, std::move(jobs), shards, [&] { return head(state, step, last); });
  if (adapter_saves_)
    adapter_saves_->save(
        state, content.live, content.place, file_options(config_),
        [&] { return this->content(state, step); },
        name_of(step, (step - 1) / state.batches_per_epoch), last);
}

void RunCheckpoints::complete(const KeptCheckpoint& checkpoint, bool last,
                              const std::vector<std::string>& replaced) {
  failure_.clear();
  if (last) last_saved_ = checkpoint.step;
  if (section_.verbose)
    log_info(folder_->address() + "/" + checkpoint.tag + ": checkpoint of step " +
             std::to_string(checkpoint.step) + " saved");
  if (one_device_)
    failure_ = save_one_device(config_, {folder_->shared_storage(), checkpoint.tag}, *one_device_);
  if (!torch_dist_failure_.empty()) failure_ = std::exchange(torch_dist_failure_, {});
  keep_saved(*folder_, checkpoint, replaced, rule_);
}

void RunCheckpoints::failed(const KeptCheckpoint& checkpoint, const std::string& reason) {
  failure_ = reason;
  drop_failed(*folder_, checkpoint, reason);
}

}  // namespace trellis::checkpoint
