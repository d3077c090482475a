#include "trainer/pipeline/model.h"

#include <algorithm>
#include <chrono>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "base/error.h"
#include "trainer/config/schedule/scheduler.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {

/// One pass of one micro-batch, with its receive and its send.
class NxDPPModel::TaskScope {
 public:
  TaskScope(bool is_forward, const std::string& microbatch)
      : phase_(is_forward ? "phase=forward" : "phase=backward"), microbatch_(microbatch) {}

 private:
  Scope phase_;
  Scope microbatch_;
};

namespace {

/// The last layer's scope ends with backward, also when an exception ends it: before those of the
/// pass, which are around it.
class LayersOfBackward {
 public:
  explicit LayersOfBackward(BackwardLayer* layer) : layer_(layer) {}
  ~LayersOfBackward() {
    if (layer_ != nullptr) layer_->close();
  }
  LayersOfBackward(const LayersOfBackward&) = delete;
  LayersOfBackward& operator=(const LayersOfBackward&) = delete;

 private:
  BackwardLayer* layer_;
};

}  // namespace

NxDPPModel::NxDPPModel(std::vector<std::unique_ptr<PipelineStage>> stages,
                       const ModuleContext& context, const PipelineOptions& options)
    : stages_(std::move(stages)),
      parallel_(*context.parallel),
      context_(context),
      options_(options),
      shape_{options.num_microbatches, parallel_.get_pipeline_model_parallel_size(),
             static_cast<int>(stages_.size())},
      rank_(parallel_.get_pipeline_model_parallel_rank()),
      comm_(parallel_.get_pipeline_model_parallel_group(), shape_, context.device, options.border),
      replay_(options.replay && options.trace_file_path.empty() ? plan_replay(shape_)
                                                                : std::nullopt),
      training_(training_pass()),
      weighs_(stages_.front()->weighs_its_loss()),
      num_metrics_(stages_.front()->num_metrics()) {
  TORCH_CHECK(!options.return_mb_loss || !options.broadcast_and_average_loss,
              "return_mb_loss and broadcast_and_average_loss exclude each other");
  reserve_for(options.num_microbatches);
  const bool writes_timeline = parallel_.get_zero1_sharding_group().rank == 0 &&
                               parallel_.get_tensor_model_parallel_rank() == 0;
  if (!options.trace_file_path.empty() && writes_timeline)
    timeline_.emplace(options.trace_file_path, rank_, options.trace_title);
}

NxDPPModel::Pass NxDPPModel::make_pass(
    const std::function<std::vector<Task>(int rank)>& tasks_of) const {
  std::vector<std::vector<Task>> tasks_of_ranks;
  for (int rank = 0; rank < shape_.num_ranks; ++rank) tasks_of_ranks.push_back(tasks_of(rank));
  Pass pass{tasks_of_ranks[static_cast<std::size_t>(rank_)],
            incoming_messages(tasks_of_ranks, shape_, rank_)};
  pass.period_ends.fill(pass.tasks.size());
  return pass;
}

NxDPPModel::Pass NxDPPModel::training_pass() const {
  const PipelineShape& executed = replay_ ? replay_->executed : shape_;
  Pass pass = make_pass([&executed](int rank) { return training_tasks(executed, rank); });
  if (!replay_) return pass;
  pass.period_ends = trainer::period_ends(pass.tasks, *replay_);
  pass.skipped = replay_->skipped();
  return pass;
}

void NxDPPModel::reserve_for(int num_microbatches) {
  in_flight_.resize(static_cast<std::size_t>(
      std::max(shape_.num_microbatches * shape_.num_chunks, num_microbatches)));
  while (static_cast<int>(microbatch_scopes_.size()) < num_microbatches) {
    microbatch_scopes_.push_back("microbatch=" + std::to_string(microbatch_scopes_.size()));
  }
}

NxDPPModel::InFlight& NxDPPModel::in_flight(const Task& task) {
  return in_flight_[static_cast<std::size_t>(task.chunk * shape_.num_microbatches +
                                             task.microbatch)];
}

at::Tensor NxDPPModel::run_train(const std::vector<MicroBatch>& micro_batches,
                                 const std::function<void()>& reduce_grads) {
  TORCH_CHECK(static_cast<int>(micro_batches.size()) == shape_.num_microbatches,
              "run_train: expected ", shape_.num_microbatches, " micro-batches, got ",
              micro_batches.size());
  run(training_, micro_batches, reduce_grads);
  return loss_of_pass(micro_batches.front());
}

at::Tensor NxDPPModel::run_eval(const std::vector<MicroBatch>& micro_batches) {
  evaluate(micro_batches);
  if (options_.return_mb_loss) return losses_of_micro_batches();
  if (!options_.broadcast_and_average_loss && losses_.empty()) return {};
  return weighted_mean(options_.broadcast_and_average_loss
                           ? everywhere(weighted_sums(micro_batches))
                           : weighted_sums(micro_batches));
}

at::Tensor NxDPPModel::run_eval_sums(const std::vector<MicroBatch>& micro_batches) {
  evaluate(micro_batches);
  return everywhere(weighted_sums(micro_batches));
}

at::Tensor NxDPPModel::run_log_probs(const std::vector<MicroBatch>& micro_batches) {
  log_probs_.clear();
  keeps_log_probs_ = true;
  evaluate(micro_batches);
  keeps_log_probs_ = false;
  std::int64_t rows = 0;
  for (const MicroBatch& micro_batch : micro_batches) rows += micro_batch.input_ids.size(0);
  at::Tensor all = log_probs_.empty() ? at::zeros({rows}, loss_options())
                                      : at::cat(log_probs_).to(loss_options().dtype());
  log_probs_.clear();
  return all_reduce(std::move(all), parallel_.get_pipeline_model_parallel_group());
}

void NxDPPModel::evaluate(const std::vector<MicroBatch>& micro_batches) {
  if (shape_.num_chunks > 1) {
    throw ConfigError(
        "run_eval: the inference schedule has no virtual stages: expected "
        "virtual_pipeline_model_parallel_size 1, got " +
        std::to_string(shape_.num_chunks) + "; evaluate in a run without virtual stages");
  }
  const int count = static_cast<int>(micro_batches.size());
  TORCH_CHECK(count > 0, "run_eval: expected at least one micro-batch, got none");
  reserve_for(count);
  const at::NoGradGuard no_grad;
  run(make_pass([&](int rank) { return InferenceSchedule(count, shape_.num_ranks, rank).tasks(); }),
      micro_batches, [] {});
}

void NxDPPModel::run(const Pass& pass, const std::vector<MicroBatch>& micro_batches,
                     const std::function<void()>& reduce_grads) {
  losses_.clear();
  losses_at_mark_ = 0;
  backward_s_ = 0;
  comm_.begin(pass.incoming);
  std::optional<TaskScope> scope;
  for (std::size_t i = 0; i < pass.tasks.size(); ++i) {
    const Task& task = pass.tasks[i];
    if (task.kind == TaskKind::kReduceGrads) break;
    const int microbatch = pass.microbatch(i, task.microbatch);
    const MicroBatch& data = micro_batches[static_cast<std::size_t>(microbatch)];
    if (i == 0 || !same_pass(pass.tasks[i - 1], task)) {
      scope.reset();
      begin_pass(pass, i);
      scope.emplace(task.is_forward(), microbatch_scope(microbatch));
      announce(task, microbatch, data);
    }
    if (timeline_) timeline_->begin();
    execute(task, data);
    if (timeline_) timeline_->end(task);
  }
  comm_.finish();
  scope.reset();
  if (timeline_) timeline_->begin();
  reduce_grads();
  if (!timeline_) return;
  if (at::GradMode::is_enabled()) timeline_->end(Task{});
  timeline_->end_pass();
}

/// Work between two passes: ends a period, and posts the receives of this pass and the next one.
void NxDPPModel::begin_pass(const Pass& pass, std::size_t place) {
  for (const std::size_t end : pass.period_ends) {
    if (end != place) continue;
    options_.replay->mark();
    if (place == pass.period_ends.back()) repeat_period();
    losses_at_mark_ = losses_.size();
  }
  for (const Message& message : receives_to_post(pass.tasks, place, shape_, rank_)) {
    const TaskScope of_the_message(!message.is_gradient,
                                   microbatch_scope(pass.microbatch(place, message.microbatch)));
    comm_.post(message);
  }
}

/// Repeats a period. Only the losses that it makes outlive it.
void NxDPPModel::repeat_period() {
  const std::vector<at::Tensor> kept(losses_.begin() + static_cast<std::ptrdiff_t>(losses_at_mark_),
                                     losses_.end());
  for (at::Tensor& loss : options_.replay->repeat(replay_->times, kept))
    losses_.push_back(std::move(loss));
  options_.replay->skipped(replay_->skipped());
}

/// Layers draw random numbers by the place of the micro-batch in the global batch: that of its
/// first row, or dealt out cyclically.
void NxDPPModel::announce(const Task& task, int microbatch, const MicroBatch& data) {
  position_.stage = shape_.stage(rank_, task.chunk);
  position_.microbatch = std::int64_t{microbatch} * parallel_.get_data_parallel_size() +
                         parallel_.get_data_parallel_rank();
  if (!data.places.empty()) position_.microbatch = data.places.front();
  context_.position->microbatch = position_.microbatch;
  context_.position->training = at::GradMode::is_enabled();
}

void NxDPPModel::execute(const Task& task, const MicroBatch& micro_batch) {
  InFlight& flight = in_flight(task);
  switch (task.kind) {
    case TaskKind::kForwardPreprocess:
      flight.input = comm_.receive(*received_by(task, shape_, rank_))
                         .requires_grad_(at::GradMode::is_enabled());
      break;
    case TaskKind::kForwardStep: forward(task, micro_batch); break;
    case TaskKind::kForwardPostprocess:
      comm_.send(*sent_by(task, shape_, rank_), flight.value.detach());
      if (options_.deallocate_pipeline_outputs || !at::GradMode::is_enabled()) flight.value.reset();
      break;
    case TaskKind::kBackwardPreprocess:
      flight.gradient = comm_.receive(*received_by(task, shape_, rank_));
      break;
    case TaskKind::kBackwardStep: backward(task, micro_batch); break;
    case TaskKind::kBackwardPostprocess:
      TORCH_CHECK(flight.input.grad().defined(), "pipeline stage ", shape_.stage(rank_, task.chunk),
                  " does not use its input: it has no gradient");
      comm_.send(*sent_by(task, shape_, rank_), flight.input.grad());
      flight.input.reset();
      break;
    case TaskKind::kReduceGrads: break;
  }
}

/// Ids go to the first stage only, labels to the last: what a stage does not read is not copied.
MicroBatch NxDPPModel::on_device(const MicroBatch& host, bool first, bool last) const {
  const auto copy = [this](bool wanted, const at::Tensor& tensor) {
    return wanted && tensor.defined() ? tensor.to(context_.device) : at::Tensor();
  };
  return {copy(first, host.input_ids),         copy(last, host.labels),
          copy(last, host.loss_mask),          copy(true, host.position_ids),
          copy(true, host.attention_mask),     {},
          copy(first, host.token_type_ids),    copy(last, host.next_sentence_labels),
          copy(first, host.pixel_values),      copy(last, host.next_tokens),
          copy(last, host.reference_log_probs)};
}

void NxDPPModel::forward(const Task& task, const MicroBatch& micro_batch) {
  InFlight& flight = in_flight(task);
  const int stage = shape_.stage(rank_, task.chunk);
  const bool is_last = is_last_stage(task.chunk);
  flight.value = stages_[static_cast<std::size_t>(task.chunk)]->forward(
      flight.input, on_device(micro_batch, stage == 0, is_last));
  if (is_last) {
    TORCH_CHECK(flight.value.numel() == (weighs_ ? 2 : 1),
                "the last pipeline stage must return the micro-batch's loss, ",
                weighs_ ? "a sum and a sum of weights" : "one number", ": got sizes ",
                flight.value.sizes());
    // The division by M and the mean over micro-batches happen in fp32 at least.
    if (flight.value.scalar_type() != at::kDouble) flight.value = flight.value.to(at::kFloat);
    if (!weighs_ && flight.value.dim() > 0) flight.value = flight.value.reshape({});
    keep_loss(flight.value.detach(), *stages_[static_cast<std::size_t>(task.chunk)]);
  }
  if (at::GradMode::is_enabled()) {
    flight.output = torch::autograd::impl::gradient_edge(flight.value);
  } else {
    flight.input.reset();
  }
}

/// Metrics travel with the loss, in the same communications.
void NxDPPModel::keep_loss(const at::Tensor& loss, const PipelineStage& stage) {
  losses_.push_back(num_metrics_ == 0
                        ? loss
                        : at::cat({loss.reshape({1}), stage.metrics().to(loss.scalar_type())}));
  if (keeps_log_probs_) log_probs_.push_back(stage.log_probs());
}

/// The loss is divided by the number of micro-batches where backward starts: its gradient is 1/M
/// instead of 1. A sum is divided by all labels, whether they count or not: the same number in each
/// pass. How many count is known when all passes have ended: gradient_scale().
void NxDPPModel::backward(const Task& task, const MicroBatch& micro_batch) {
  InFlight& flight = in_flight(task);
  at::Tensor gradient = std::move(flight.gradient);
  if (is_last_stage(task.chunk)) {
    const double parts = weighs_ ? labels_of_rank(micro_batch) : shape_.num_microbatches;
    gradient = at::full(flight.value.sizes(), 1.0 / parts, flight.value.options());
  }
  const torch::autograd::Edge root = std::move(flight.output);
  flight.value.reset();
  const auto start = std::chrono::steady_clock::now();
  const LayersOfBackward layers(context_.backward.get());
  torch::autograd::Engine::get_default_engine().execute(
      {root}, {std::move(gradient)}, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/true);
  backward_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double NxDPPModel::labels_of_rank(const MicroBatch& micro_batch) const {
  return static_cast<double>(micro_batch.labels.numel()) * shape_.num_microbatches;
}

/// On the last stage; undefined elsewhere.
at::Tensor NxDPPModel::losses_of_micro_batches() const {
  if (losses_.empty()) return {};
  at::Tensor losses = at::stack(losses_);
  if (num_metrics_ > 0) losses = losses.select(1, 0);
  return weighs_ ? weighted_mean(losses.t()) : losses;
}

at::Tensor NxDPPModel::loss_of_pass(const MicroBatch& micro_batch) {
  at::Tensor sums;
  if (weighs_) {
    const Scope scope("phase=grad_reduce");
    sums = everywhere(losses_.empty() ? at::zeros({2}, loss_options()) : at::stack(losses_).sum(0));
    const at::Tensor counted = sums[1] + sums[1].eq(0).to(sums.scalar_type());
    const int parts = parallel_.get_zero1_sharding_group().size;
    gradient_scale_ = at::full({}, labels_of_rank(micro_batch) * parts, loss_options()) / counted;
    if (options_.broadcast_and_average_loss) return sums[0] / counted;
  }
  if (options_.broadcast_and_average_loss) return average_loss();
  if (losses_.empty() || options_.return_mb_loss) return losses_of_micro_batches();
  return weighs_ ? weighted_mean(at::stack(losses_).sum(0)) : losses_of_micro_batches().mean();
}

at::TensorOptions NxDPPModel::loss_options() const {
  return at::TensorOptions()
      .device(context_.device)
      .dtype(context_.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor NxDPPModel::average_loss() {
  const Scope scope("phase=grad_reduce");
  const ParallelGroup& data = parallel_.get_zero1_sharding_group();
  at::Tensor loss;
  if (losses_.empty()) {
    loss = num_metrics_ > 0 ? at::zeros({1 + num_metrics_}, loss_options())
                            : at::zeros({}, loss_options());
  } else {
    const double count = static_cast<double>(losses_.size()) * data.size;
    const at::Tensor losses = at::stack(losses_);
    loss = all_reduce(num_metrics_ > 0 ? losses.sum(0) : losses.sum(), data).mul_(1.0 / count);
  }
  loss =
      all_reduce(std::move(loss),
                 parallel_.get_pipeline_model_parallel_group());  // stages without a loss add zero
  if (num_metrics_ == 0) return loss;
  metrics_ = loss.narrow(0, 1, num_metrics_);
  return loss[0];
}

/// Weights are a tensor: the operations of a pass do not depend on what is in its batches.
at::Tensor NxDPPModel::weighted_sums(const std::vector<MicroBatch>& micro_batches) const {
  if (losses_.empty()) return at::zeros({2}, loss_options());
  if (weighs_) return at::stack(losses_).sum(0);
  std::vector<double> host;
  for (const MicroBatch& micro_batch : micro_batches) host.push_back(loss_weight(micro_batch));
  const at::Tensor losses = losses_of_micro_batches();
  const at::Tensor weights = at::tensor(host, losses.scalar_type()).to(context_.device);
  return at::stack({(losses * weights).sum(), weights.sum()});
}

/// Only the last stage has a loss: its sums over data-parallel ranks go to every stage.
at::Tensor NxDPPModel::everywhere(at::Tensor sums) {
  if (!losses_.empty()) sums = all_reduce(std::move(sums), parallel_.get_zero1_sharding_group());
  return all_reduce(std::move(sums), parallel_.get_pipeline_model_parallel_group());
}

double loss_weight(const MicroBatch& micro_batch) {
  const at::Tensor& labels = micro_batch.labels;
  if (!micro_batch.samples.empty())
    return static_cast<double>(std::ranges::count_if(
        micro_batch.samples, [](std::int64_t sample) { return sample >= 0; }));
  if (!labels.defined()) return static_cast<double>(micro_batch.input_ids.size(0));
  at::Tensor weights = labels.ne(-100).to(at::kDouble);
  if (micro_batch.loss_mask.defined()) weights = weights * micro_batch.loss_mask;
  return weights.sum().item<double>();
}

}  // namespace trellis::trainer
