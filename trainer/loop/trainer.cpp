#include "trainer/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "base/error.h"
#include "base/log.h"
#include "device/plugin.h"
#include "runtime/groups/device_plugin.h"
#include "trainer/config/logged_scalars.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/files/run/rank_log.h"
#include "trainer/loop/built_model.h"
#include "trainer/loop/early_stopping.h"
#include "trainer/loop/faults.h"
#include "trainer/loop/first_non_finite.h"
#include "trainer/loop/rank_model.h"
#include "trainer/loop/reference_log_probs.h"
#include "trainer/loop/replica_check.h"
#include "trainer/loop/routed_tokens.h"
#include "trainer/loop/step_calendar.h"
#include "trainer/loop/step_scalars.h"
#include "trainer/loop/training_checkpoints.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/parallel_layers/fully_sharded.h"
#include "trainer/pipeline/model.h"
#include "trainer/pipeline/tied_weights.h"
#include "trainer/scopes/autocast.h"

namespace trellis::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kAllBatches = std::numeric_limits<std::int64_t>::max();

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Global batches of an epoch. A shape-only run has no data, and so no end of them.
std::int64_t batches_per_epoch(const RunConfig& config, const DataModule& data, bool shape_only) {
  if (shape_only) return std::int64_t{1} << 40;
  return data.num_tokens() /
         (std::int64_t{config.data.global_batch_size} * config.model.encoder_seq_length);
}

}  // namespace

ParallelSizes parallel_sizes(const RunConfig& config) {
  const DistributedStrategySection& strategy = config.distributed_strategy;
  return {.tensor_model_parallel_size = config.tp(),
          .pipeline_model_parallel_size = config.pp(),
          .context_parallel_size = config.cp(),
          .expert_model_parallel_size = config.ep(),
          .kv_size_multiplier = strategy.kv_replicator,
          .token_shuffle_group_size = strategy.token_shuffle_group_size,
          .data_parallel_replicate_size = strategy.data_parallel_replicate_size,
          .kv_replica_order = replica_order_of(config.hardware)};
}

struct Trainer::Impl {
  Impl(const RunConfig& run, runtime::RankContext& rank_context,
       std::shared_ptr<const DataModule> data_module, const ParallelState& state,
       TrainerHooks trainer_hooks, const TrainerServices& services)
      : config(run),
        rank(rank_context),
        log(rank.rank(), services.logs),
        checkpoints(services.checkpoints),
        routing(services.routing),
        directory(services.directory),
        faults(services.faults),
        check_replicas_every(services.check_replicas_every),
        data(std::move(data_module)),
        hooks(std::move(trainer_hooks)),
        parallel(state),
        context(module_context(config, {rank.device(), rank.shape_only()}, parallel, parameters)),
        calendar(config.trainer, batches_per_epoch(config, *data, rank.shape_only())),
        scheduler(config.model.optim, config.trainer.max_steps) {
    if (config.exp_manager.early_stopping)
      early_stopping.emplace(*config.exp_manager.early_stopping);
    check_evaluation();
    const Scope scope("phase=init");
    if (config.distributed_strategy.fsdp)
      context.fully_sharded = std::make_shared<FullySharding>(parallel);
    build_model();
    if (hooks.built) {
      const auto whole = whole_weights();
      hooks.built(parameters);
    }
    tied.emplace(model->stages(), parameters, model->shape(), parallel,
                 pipeline_group_factory(rank, parallel));
    optimizer.emplace(parameters, parallel, optimizer_options(config));
    account_memory();
    describe_rank();
  }

  /// A few ranks at a time: a host holds each weight whole for a moment while it is cut into
  /// shards.
  void build_model() {
    PipelineOptions options;
    options.num_microbatches = config.num_microbatches();
    options.border = stage_border(config, context);
    if (rank.replays()) options.replay = replay_on_device();
    if (rank.shape_only()) {  // no one holds anything
      model.emplace(build_stages(config, context), context, options);
      return;
    }
    for (int first = 0; first < rank.world_size(); first += config.trainer.sequential_move_factor) {
      const bool is_my_turn =
          rank.rank() >= first && rank.rank() < first + config.trainer.sequential_move_factor;
      if (is_my_turn) model.emplace(build_stages(config, context), context, options);
      rank.host_barrier();
    }
  }

  [[nodiscard]] FullySharding::Whole whole_weights() const {
    return FullySharding::Whole(context.fully_sharded.get());
  }

  void describe_rank() const {
    std::string text = "built " + check_built(config, parallel, parameters) + ", stages";
    for (int chunk = 0; chunk < model->shape().num_chunks; ++chunk)
      text += " " + std::to_string(
                        model->shape().stage(parallel.get_pipeline_model_parallel_rank(), chunk));
    if (parallel.get_kv_shared_group().size > 1) {
      text += "; copy " + std::to_string(parallel.get_kv_shared_group().rank) +
              " of its key/value heads, in the order of " + config.hardware;
    }
    log.note(parallel.rmsg(text));
  }

  /// The device repeats what passes do to it; the optimizer only counts.
  Replay replay_on_device() {
    Replay replay;
    const runtime::DevicePlugin& plugin = *rank.plugin();
    replay.mark = [&plugin] { plugin.check(plugin.api().mark_period()); };
    replay.repeat = [&plugin](std::int64_t times, const std::vector<at::Tensor>& kept) {
      std::vector<void*> in, out(kept.size() * static_cast<std::size_t>(times));
      for (const at::Tensor& tensor : kept) in.push_back(const_cast<at::Tensor*>(&tensor));
      const int result = plugin.api().repeat_period(
          times, in.data(), static_cast<std::int32_t>(in.size()), out.data());
      if (result > 0) throw PassesDiffer();
      plugin.check(result);
      std::vector<at::Tensor> copies;
      for (void* tensor : out)
        copies.push_back(std::move(*std::unique_ptr<at::Tensor>(static_cast<at::Tensor*>(tensor))));
      return copies;
    };
    replay.skipped = [this](int microbatches) { optimizer->skip_gradients(microbatches); };
    return replay;
  }

  [[nodiscard]] bool validates() const {
    return calendar.ever_validates() || config.trainer.num_sanity_val_steps != 0;
  }

  void check_evaluation() const {
    const bool has_data = data->num_evaluation_batches(Split::kValidation) > 0;
    if (early_stopping && is_of_validation(early_stopping->monitor()) && !rank.shape_only() &&
        !(has_data && calendar.ever_validates())) {
      throw ConfigError(
          "exp_manager.early_stopping_callback_params.monitor: " + early_stopping->monitor() +
          " is never there: expected held-out data and a "
          "trainer.val_check_interval within the run; or monitor reduced_train_loss");
    }
    if (validates() && !has_data && !rank.shape_only()) refuse_missing_validation();
    if (has_data && validates())
      refuse_virtual_stages("trainer.limit_val_batches: validation", "limit_val_batches");
  }

  /// Validation data that make no global batch: an error where the file names them, a warning where
  /// they are a split's small part.
  void refuse_missing_validation() const {
    const auto& limit = config.trainer.limit_val_batches;
    if (limit && limit->is_zero()) return;
    const DataSection& section = config.data;
    const auto named = section.data_prefix_by_split.find("validation");
    const bool is_named = !section.val_dir.empty() ||
                          (named != section.data_prefix_by_split.end() && !named->second.empty());
    const bool is_split = section.kind == DataKind::kMegatron && section.splits.size() > 1 &&
                          section.splits[1] > 0 && !is_named;
    const std::string text =
        "no validation will run: the validation data are fewer than one global batch "
        "(data.global_batch_size " +
        std::to_string(section.global_batch_size) +
        "); give more of them, lower data.global_batch_size, set "
        "data.validation_drop_last to false, or set trainer.limit_val_batches to 0";
    if (is_named)
      throw ConfigError((section.val_dir.empty() ? "data.data_prefix.validation: "
                                                 : "data.val_dir: " + section.val_dir + ": ") +
                        text);
    if (is_split && rank.rank() == 0) log.warning("data.splits_string: " + text);
  }

  void refuse_virtual_stages(const std::string& what, const std::string& limit) const {
    if (config.vpp() == 1) return;
    throw ConfigError(what + " has no schedule with virtual stages: expected " + limit +
                      " 0 or "
                      "distributed_strategy.virtual_pipeline_model_parallel_size 1, got " +
                      std::to_string(config.vpp()));
  }

  StopReason fit(const StepCallback& on_step) {
    if (checkpoints != nullptr) {
      const Scope scope("phase=init");
      steps_done = checkpoints->restore(training_state());
    }
    if (config.model.dpo && !rank.shape_only()) open_reference();
    const StopReason reason = run_steps(on_step);
    log.note("training ended after step " + std::to_string(steps_done) + ": " + name_of(reason));
    if (checkpoints != nullptr) {
      const Scope scope("phase=checkpoint");
      checkpoints->at_end(training_state(), steps_done);
    }
    return reason;
  }

  void open_reference() {
    std::filesystem::path file = config.model.dpo->ref_cache;
    if (file.empty() && !directory.empty())
      file = std::filesystem::path(directory) / "reference_log_probs.json";
    const bool lora = config.model.lora.has_value(),
               adapters = lora && config.model.dpo->starts_with_adapters;
    reference.emplace(
        ReferenceLogProbs::Run{*model, context, rank, *data, config.data.global_batch_size,
                               lora && !adapters && config.model.lora->keeps_base(), adapters},
        file, steps_done);
    const std::string weights =
        !lora      ? "of the weights at the start"
        : adapters ? "of the weights at the start with their adapters, as TRL's "
                     "(model_alignment_strategy.dpo.reference: start)"
                   : "of the base without adapters (model_alignment_strategy.dpo.reference: base)";
    log.note("reference log-probabilities " + weights + ": " +
             (file.empty() ? "not kept" : file.string()));
  }

  [[nodiscard]] TrainingState training_state() {
    return {config,
            rank,
            parallel,
            parameters,
            *optimizer,
            scheduler,
            early_stopping ? &*early_stopping : nullptr,
            stop_requested,
            *context.position,
            calendar.batches_per_epoch(),
            context.fully_sharded.get()};
  }

  StopReason run_steps(const StepCallback& on_step) {
    const auto start = Clock::now();
    const std::int64_t sanity = config.trainer.num_sanity_val_steps;
    // A resumed run has proved before that it can validate.
    if (sanity != 0 && steps_done == 0)
      (void)evaluate(Split::kValidation, sanity < 0 ? kAllBatches : sanity);
    for (std::int64_t step = steps_done; step < calendar.last_step(); ++step) {
      if (rank.stop_requested()) return StopReason::kInterrupted;
      rank.begin_step(step + 1);
      begin_step_on_device(step + 1);
      if (faults != nullptr) faults->before_step(rank.rank(), step + 1);
      StepResult result = training_step(step);
      if (calendar.validates_after(result.step)) validate(result);
      if (result.step % calendar.batches_per_epoch() == 0)
        scheduler.end_epoch(result.val_loss.value_or(result.loss));
      if (const auto end_step = device_end_step()) rank.plugin()->check(end_step(result.step));
      steps_done = result.step;
      const bool stops = report(result, on_step);
      if (checkpoints != nullptr) {
        const Scope scope("phase=checkpoint");
        checkpoints->after_step(training_state(), result);
      }
      if (stops) return StopReason::kEarlyStopping;
      if (result.step < calendar.last_step() && result.step >= calendar.least_step() &&
          is_out_of_time(start))
        return StopReason::kMaxTime;
    }
    return calendar.ends_by_epochs() ? StopReason::kMaxEpochs : StopReason::kMaxSteps;
  }

  /// Clocks are read at different moments: the ranks agree on one reading.
  [[nodiscard]] bool is_out_of_time(Clock::time_point start) {
    return config.trainer.max_time_s &&
           rank.agree(seconds_since(start) >= *config.trainer.max_time_s);
  }

  /// Rank 0 reports the step, and alone knows all numbers of it: the others take over whether the
  /// run stops early.
  bool report(StepResult& result, const StepCallback& on_step) {
    const bool watches = early_stopping && !rank.shape_only();
    bool stops = false;
    rank.host_barrier();
    if (routing != nullptr && rank.leads_process())
      result.routed_tokens = take_of_all_processes(*routing, rank, result.step);
    if (rank.rank() == 0 && !rank.shape_only()) result.scalars = scalars_of(result, config);
    if (rank.leads_process()) on_step(result);
    if (rank.rank() == 0) stops = watches && rank.agree(stops_early(result));
    rank.host_barrier();
    return rank.rank() != 0 && watches ? rank.agree(false) : stops;
  }

  bool stops_early(const StepResult& result) {
    const std::string& monitor = early_stopping->monitor();
    const auto found = result.scalars.find(monitor);
    if (found != result.scalars.end() && !stop_requested) {
      const auto why = early_stopping->update(found->second);
      stop_requested = why.has_value();
      const bool later = stop_requested && result.step < calendar.least_step();
      const std::string text = "early stopping after step " +
                               std::to_string(later ? calendar.least_step() : result.step) + ": ";
      if (stop_requested)
        log.info(text + *why +
                 (later ? ", in step " + std::to_string(result.step) +
                              "; trainer.min_steps or min_epochs holds the run"
                        : ""));
    } else if (found == result.scalars.end() && !is_of_validation(monitor)) {
      throw ConfigError("exp_manager.early_stopping_callback_params.monitor: step " +
                        std::to_string(result.step) + " logs no " + monitor +
                        ": simulated numbers need --device neuron; monitor reduced_train_loss or "
                        "val_loss");
    }
    return stop_requested && result.step >= calendar.least_step();
  }

  StepResult training_step(std::int64_t step) {
    StepResult result;
    result.step = step + 1;
    result.lr = scheduler.lr(step);
    result.consumed_samples = checkpoints != nullptr ? checkpoints->consumed_samples(result.step)
                                                     : result.step * config.data.global_batch_size;
    const auto before_data = Clock::now();
    auto micro_batches = data->micro_batches(step, parallel.get_data_parallel_rank());
    if (reference) reference->add_to(micro_batches, Split::kTrain);
    take_sequence_parts(micro_batches, context);
    result.data_wait_s = seconds_since(before_data);
    const at::Tensor loss = with_autocast(
        [&] { return model->run_train(micro_batches, [this] { reduce_gradients(); }); });
    result.backward_s = model->backward_s();
    optimizer->scale_gradients(model->gradient_scale());
    if (hooks.gradients_reduced) hooks.gradients_reduced(*optimizer);
    if (routing != nullptr && parallel.get_tensor_model_parallel_rank() == 0) add_routed_tokens();
    const at::Tensor numbers = update(loss, result, micro_batches);
    context.position->step = result.step;
    if (faults != nullptr && faults->flips_in(result.step)) {
      const auto whole = whole_weights();
      faults->after_update(rank.rank(), result.step, parameters);
    }
    if (check_replicas_every > 0 && result.step % check_replicas_every == 0)
      check_replicas(parameters, parallel, rank, result.step);
    // The second read waits for the update: a step ends when the device has done it.
    const bool norms = config.exp_manager.log_parameter_norm;
    const at::Tensor last = (norms ? norm_of_parameters() : numbers).cpu();
    if (norms) result.parameter_norm = last.item<double>();
    return result;
  }

  [[nodiscard]] at::Tensor norm_of_parameters() const {
    const auto whole = whole_weights();
    return parameter_norm(parameters, parallel);
  }

  void add_routed_tokens() {
    for (const auto& stage : model->stages()) {
      for (const auto& [layer, routed] : stage->take_routed_tokens()) {
        const at::Tensor host = routed.counts.cpu();
        const auto* first = host.const_data_ptr<std::int64_t>();
        const auto experts = static_cast<std::ptrdiff_t>(host.size(1));
        routing->add(
            layer,
            {{first, first + experts}, {first + experts, first + 2 * experts}, routed.computed});
      }
    }
  }

  /// The host reads loss and norm before the optimizer spreads a bad number over all weights.
  /// Returns what it read, on the device.
  at::Tensor update(const at::Tensor& loss, StepResult& result,
                    const std::vector<MicroBatch>& micro_batches) {
    const at::Tensor norm = optimizer->grad_norm();
    std::vector<at::Tensor> numbers{loss, norm};
    const std::optional<double>& tracked = config.trainer.track_grad_norm;
    if (tracked && *tracked != 2) numbers.push_back(optimizer->grad_norm(*tracked));
    at::Tensor on_device, read;
    {
      const Scope scope("phase=optimizer");
      on_device = at::stack(numbers);
      if (model->metrics().defined())
        on_device = at::cat({on_device, model->metrics().to(on_device.scalar_type())});
      read = on_device.cpu();
    }
    read_metrics(read.narrow(0, std::ssize(numbers), read.size(0) - std::ssize(numbers)), result);
    result.loss = read[0].item<double>();
    result.grad_norm = read[1].item<double>();
    if (tracked) result.tracked_grad_norm = read[*tracked == 2 ? 1 : 2].item<double>();
    result.skipped = !is_finite(result, micro_batches);
    result.skipped ? optimizer->skip_step() : optimizer->step(result.lr, norm);
    return on_device;
  }

  void read_metrics(const at::Tensor& values, StepResult& result) const {
    if (values.numel() == 0) return;
    const std::vector<std::string> tags = preference_tags(config.model);
    for (std::size_t i = 0; i < tags.size(); ++i)
      result.metrics[tags[i]] = values[static_cast<std::int64_t>(i)].item<double>();
  }

  void reduce_gradients() {
    const AutocastScope off(rank.device().type(), false);
    tied->sum_gradients(
        [this](const Parameter& parameter) { return optimizer->main_grad(parameter); });
    optimizer->reduce_gradients();
  }

  template <class Pass>
  auto with_autocast(const Pass& pass) -> decltype(pass()) {
    const AutocastScope scope(rank.device().type(), config.precision.autocast);
    return pass();
  }

  /// Every rank reads the same numbers and so decides alike. The rank that finds the culprit
  /// speaks.
  bool is_finite(const StepResult& result, const std::vector<MicroBatch>& micro_batches) {
    if (rank.shape_only()) return true;  // no memory, no numbers
    if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return true;
    const bool skips = config.model.skip_nan_grad && !std::isfinite(result.grad_norm);
    const bool by_loss = !std::isfinite(result.loss) && !skips;
    const std::string where =
        by_loss ? with_autocast([&] { return first_non_finite(*model, context, micro_batches); })
                : first_non_finite_gradient(*optimizer, context);
    if (where.empty()) {
      if (!skips) rank.host_barrier();  // until the rank that found it has spoken
      return false;
    }
    std::string text = "step " + std::to_string(result.step) + ": ";
    text += by_loss ? "the loss is " + std::to_string(result.loss)
                    : "the norm of the gradients is " + std::to_string(result.grad_norm);
    if (!by_loss) text += " (loss " + std::to_string(result.loss) + ")";
    text += "; the first value that is not finite is " + where;
    const std::string before = std::to_string(result.step - 1);
    if (skips) {
      log_warning(text + ". The step is skipped (model.skip_nan_grad)");
      return false;
    }
    throw ConfigError(
        text + ". The weights are those of step " + before +
        "; lower model.optim.lr, lengthen the warm-up, look at the data of this step" +
        (by_loss ? "" : ", or set model.skip_nan_grad to skip such steps"));
  }

  void validate(StepResult& result) {
    const auto evaluation = evaluate(Split::kValidation, kAllBatches);
    if (!evaluation) return;
    result.val_loss = evaluation->loss;
    result.validation_batches = evaluation->batches;
    result.validation_s = evaluation->host_s;
  }

  std::optional<Evaluation> test() {
    if (data->num_evaluation_batches(Split::kTest) > 0)
      refuse_virtual_stages("trainer.limit_test_batches: a test pass", "limit_test_batches");
    return evaluate(Split::kTest, kAllBatches);
  }

  /// A pass over held-out data, at most `limit` batches of it; none without such data. Each pass
  /// starts again.
  std::optional<Evaluation> evaluate(Split split, std::int64_t limit) {
    const Scope scope(split == Split::kValidation ? "phase=validation" : "phase=test");
    const auto start = Clock::now();
    const std::int64_t batches = std::min(limit, data->num_evaluation_batches(split));
    if (batches == 0) return std::nullopt;
    const bool with_ema =
        config.exp_manager.ema && config.exp_manager.ema->evaluate_ema_weights_instead;
    if (with_ema) optimizer->swap_ema_weights();
    std::vector<at::Tensor> sums;
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      auto micro_batches =
          data->evaluation_batches(split, batch, parallel.get_data_parallel_rank());
      if (reference) reference->add_to(micro_batches, split);
      take_sequence_parts(micro_batches, context);
      sums.push_back(with_autocast([&] { return model->run_eval_sums(micro_batches); }));
    }
    if (with_ema) optimizer->swap_ema_weights();
    const at::Tensor total = at::stack(sums).cpu().to(at::kDouble).sum(0);
    const double weight = total[1].item<double>();
    if (weight == 0) {
      throw ConfigError(std::string("data: no label of the ") + name_of(split) +
                        " data counts in the loss: expected a loss_mask above 0 or a label "
                        "other than -100 somewhere; correct the data or switch " +
                        name_of(split) + " off");
    }
    return Evaluation{total[0].item<double>() / weight, batches, seconds_since(start)};
  }

  void begin_step_on_device(std::int64_t step) const {
    const runtime::DevicePlugin* const plugin = rank.plugin();
    if (plugin != nullptr && plugin->api().begin_step != nullptr)
      plugin->check(plugin->api().begin_step(step));
  }

  [[nodiscard]] auto device_end_step() const -> decltype(trellis_device_plugin_t::end_step) {
    return rank.plugin() != nullptr ? rank.plugin()->api().end_step : nullptr;
  }

  /// Notifies the device of what the long-lived buffers are.
  void account_memory() {
    if (rank.plugin() == nullptr || rank.plugin()->api().set_category == nullptr) return;
    enum Category { kParameter, kGradient, kOptimizerState };  // as trellis::device::BufferCategory
    const auto mark = [this](Category category) {
      return [this, category](const at::Tensor& tensor) {
        rank.plugin()->check(rank.plugin()->api().set_category(&tensor, category));
      };
    };
    for (const Parameter& parameter : parameters)
      mark(kParameter)(parameter.is_fully_sharded() ? parameter.shard : parameter.tensor);
    optimizer->for_each_gradient(mark(kGradient));
    optimizer->for_each_state(mark(kOptimizerState));
  }

  const RunConfig& config;
  runtime::RankContext& rank;
  RankLog log;
  TrainingCheckpoints* checkpoints;
  RoutingLedger* routing;
  std::string directory;
  const FaultPlan* faults;
  std::int64_t check_replicas_every;
  std::shared_ptr<const DataModule> data;
  TrainerHooks hooks;
  ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
  StepCalendar calendar;
  LrScheduler scheduler;
  std::optional<EarlyStopping> early_stopping;
  bool stop_requested = false;  ///< early stopping has said so, of rank 0
  std::int64_t steps_done = 0;
  std::optional<NxDPPModel> model;
  std::optional<ReferenceLogProbs> reference;  ///< model_alignment_strategy.dpo, with data
  std::optional<TiedWeights> tied;
  std::optional<NeuronZero1Optimizer> optimizer;
};

Trainer::Trainer(const RunConfig& config, runtime::RankContext& rank,
                 std::shared_ptr<const DataModule> data, TrainerServices services)
    : impl_(std::make_unique<Impl>(
          config, rank, std::move(data),
          ParallelState::initialize_model_parallel(rank, parallel_sizes(config)), TrainerHooks{},
          services)) {}

Trainer::Trainer(const RunConfig& config, runtime::RankContext& rank,
                 std::shared_ptr<const DataModule> data, const ParallelState& parallel,
                 TrainerHooks hooks, TrainerServices services)
    : impl_(std::make_unique<Impl>(config, rank, std::move(data), parallel, std::move(hooks),
                                   services)) {}

Trainer::~Trainer() = default;

StopReason Trainer::fit(const StepCallback& on_step) { return impl_->fit(on_step); }

std::optional<Evaluation> Trainer::test() { return impl_->test(); }

const char* name_of(StopReason reason) {
  switch (reason) {
    case StopReason::kMaxSteps: return "max_steps";
    case StopReason::kMaxEpochs: return "max_epochs";
    case StopReason::kMaxTime: return "max_time";
    case StopReason::kEarlyStopping: return "early_stopping";
    case StopReason::kInterrupted: break;
  }
  return "interrupted";
}

std::map<std::string, Trainer::LocalWeight> Trainer::local_weights() const {
  const auto whole = impl_->whole_weights();
  std::map<std::string, LocalWeight> weights;
  for (const Parameter& parameter : impl_->parameters) {
    weights[parameter.name] = {parameter.tensor.detach().cpu().clone(), parameter.partition_dim,
                               parameter.partition_stride, parameter.partition, parameter.experts};
  }
  return weights;
}

}  // namespace trellis::trainer
