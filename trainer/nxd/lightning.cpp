#include "trainer/nxd/lightning.h"

#include <chrono>

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "traces/tensorboard_writer.h"
#include "trainer/nxd/initialize_parallel_model.h"

namespace trellis::trainer {
namespace {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The rows of all batches, one after the other.
MicroBatch concatenated(const std::vector<MicroBatch>& batches) {
  const auto join = [&](at::Tensor MicroBatch::* field) {
    std::vector<at::Tensor> parts;
    for (const MicroBatch& batch : batches) parts.push_back(batch.*field);
    return parts.front().defined() ? at::cat(parts) : at::Tensor();
  };
  MicroBatch whole;
  for (auto field : {&MicroBatch::input_ids, &MicroBatch::labels, &MicroBatch::loss_mask,
                     &MicroBatch::position_ids, &MicroBatch::attention_mask}) {
    whole.*field = join(field);
  }
  for (const MicroBatch& batch : batches)
    whole.places.insert(whole.places.end(), batch.places.begin(), batch.places.end());
  return whole;
}

/// grad_accum_steps are micro-batches of the one stage; metrics on rank 0 are a loss on every rank.
LTModuleArguments with_pipeline(LTModuleArguments arguments) {
  NxDConfig& config = arguments.nxd_config;
  Problems problems;
  if (!arguments.manual_opt)
    problems.add("manual_opt", "only manual optimization works: expected true, got false");
  if (arguments.grad_accum_steps < 1)
    problems.add("grad_accum_steps",
                 "expected 1 or more, got " + std::to_string(arguments.grad_accum_steps));
  if (arguments.logging_interval < 1)
    problems.add("logging_interval",
                 "expected 1 or more, got " + std::to_string(arguments.logging_interval));
  if (config.pipeline_parallel_size > 1 && arguments.grad_accum_steps > 1) {
    problems.add(
        "grad_accum_steps",
        "pipeline stages accumulate over pipeline_config.num_microbatches: expected 1, got " +
            std::to_string(arguments.grad_accum_steps));
  }
  problems.throw_if_any();
  PipelineConfig pipeline = config.pipeline_config.value_or(PipelineConfig{});
  pipeline.num_microbatches *= arguments.grad_accum_steps;
  if (arguments.log_rank0) pipeline.broadcast_and_average_loss = true;
  config.pipeline_config = pipeline;
  config = neuronx_distributed_config(config);
  return arguments;
}

}  // namespace

NeuronLTModule::NeuronLTModule(LTModuleArguments arguments)
    : arguments_(with_pipeline(std::move(arguments))),
      scheduler_(arguments_.optim, arguments_.max_steps) {}

void NeuronLTModule::setup(runtime::RankContext& rank) {
  model_ = initialize_parallel_model(arguments_.nxd_config, rank, arguments_.model_fn);
}

void NeuronLTModule::configure_optimizers() {
  optimizer_ = initialize_parallel_optimizer(arguments_.nxd_config, *model_, arguments_.optim);
}

bool NeuronLTModule::is_logging_rank() const {
  const ParallelState& parallel = model_->parallel();
  const bool stage =
      arguments_.log_rank0 ? parallel.is_pipeline_first_stage() : parallel.is_pipeline_last_stage();
  return stage && parallel.get_data_parallel_rank() == 0 &&
         parallel.get_tensor_model_parallel_rank() == 0;
}

std::optional<LTStep> NeuronLTModule::training_step(const MicroBatch& batch) {
  if (batch.input_ids.size(0) != arguments_.train_batch_size) {
    throw ConfigError(c10::str("training_step: expected train_batch_size ",
                               arguments_.train_batch_size, " rows, got ",
                               batch.input_ids.size(0)));
  }
  accumulated_.push_back(batch);
  if (static_cast<int>(accumulated_.size()) < arguments_.grad_accum_steps) return std::nullopt;
  LTStep step;
  step.step = optimizer_->steps() + 1;
  step.lr = scheduler_.lr(optimizer_->steps());
  const at::Tensor loss = model_->run_train(concatenated(accumulated_));
  accumulated_.clear();
  optimizer_->set_lr(step.lr);
  optimizer_->step();
  if (loss.defined() && is_logging_rank()) step.loss = loss.item<double>();
  step.grad_norm = optimizer_->grad_norm();
  return step;
}

NeuronXLAStrategy::NeuronXLAStrategy(runtime::WorldOptions world,
                                     std::optional<NxDConfig> nxd_config, int tensor_parallel_size,
                                     int pipeline_parallel_size, bool save_load_xser)
    : world_(std::move(world)),
      config_(nxd_config.value_or(NxDConfig{})),
      save_load_xser_(save_load_xser) {
  if (nxd_config) return;
  config_.tensor_parallel_size = tensor_parallel_size;
  config_.pipeline_parallel_size = pipeline_parallel_size;
}

void NeuronXLAStrategy::launch(const std::function<void(runtime::RankContext&)>& body) const {
  runtime::run_ranks(world_, body);
}

SamplerArguments NeuronXLAStrategy::distributed_sampler_kwargs(const ParallelState& parallel) {
  return {parallel.get_data_parallel_size(), parallel.get_data_parallel_rank()};
}

NxDConfig NeuronXLAPrecisionPlugin::applied_to(NxDConfig config) const {
  if (mixed_precision_enabled) config.dtype = at::kBFloat16;
  return config;
}

void NeuronTQDMProgressBar::on_step(const LTStep& step, std::int64_t max_steps) {
  out_ << "step " << step.step << "/" << max_steps;
  if (step.loss) out_ << "  loss " << *step.loss;
  out_ << "  lr " << step.lr;
  if (step.grad_norm) out_ << "  grad norm " << *step.grad_norm;
  out_ << "\n" << std::flush;
}

NeuronTensorBoardLogger::NeuronTensorBoardLogger(const std::filesystem::path& save_dir) {
  std::filesystem::create_directories(save_dir);
  writer_ = std::make_unique<traces::TensorBoardWriter>(save_dir / "events.out.tfevents.0.trellis",
                                                        wall_clock_s());
}

NeuronTensorBoardLogger::~NeuronTensorBoardLogger() = default;

void NeuronTensorBoardLogger::scalar(const std::string& tag, std::int64_t step, double value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  writer_->scalar(tag, step, value, wall_clock_s());
}

void NeuronTensorBoardLogger::on_step(const LTStep& step) {
  if (step.loss) scalar("loss", step.step, *step.loss);
  if (step.grad_norm) scalar("grad_norm", step.step, *step.grad_norm);
  scalar("lr", step.step, step.lr);
}

LightningTrainer& LightningTrainer::callback(const NeuronHooksCallback& hooks) {
  hooks_ = &hooks;
  return *this;
}

LightningTrainer& LightningTrainer::callback(NeuronTQDMProgressBar& bar) {
  bar_ = &bar;
  return *this;
}

LightningTrainer& LightningTrainer::logger(NeuronTensorBoardLogger& logger) {
  logger_ = &logger;
  return *this;
}

LightningTrainer& LightningTrainer::callback(LightningCallback callback) {
  callbacks_.push_back(std::move(callback));
  return *this;
}

void LightningTrainer::fit(LTModuleArguments arguments, const BatchSource& data,
                           const std::function<void(const LTStep&)>& on_step) const {
  arguments.nxd_config = precision_.applied_to(strategy_.nxd_config());
  strategy_.launch([&](runtime::RankContext& rank) {
    NeuronLTModule module(arguments);
    module.setup(rank);
    module.configure_optimizers();
    for (const LightningCallback& callback : callbacks_) {
      if (callback.on_fit_start) callback.on_fit_start(rank, module);
    }
    std::optional<NeuronHooks> hooks;
    if (hooks_ != nullptr) hooks.emplace(*hooks_, module);
    const SamplerArguments sampler =
        NeuronXLAStrategy::distributed_sampler_kwargs(module.model().parallel());
    const std::int64_t max_steps = arguments.max_steps;
    const std::int64_t first = module.optimizer().steps() * arguments.grad_accum_steps;
    for (std::int64_t index = first;
         module.optimizer().steps() < max_steps && !rank.stop_requested(); ++index) {
      const auto step = module.training_step(data(index, sampler));
      if (step && hooks) hooks->end_step(step->step - 1);
      for (const LightningCallback& callback : callbacks_) {
        if (step && callback.on_train_step_end) callback.on_train_step_end(rank, module, *step);
      }
      if (!step || !module.is_logging_rank()) continue;
      const bool logs = step->step % arguments.logging_interval == 0 || step->step == max_steps;
      if (logs && bar_ != nullptr) bar_->on_step(*step, max_steps);
      if (logs && logger_ != nullptr) logger_->on_step(*step);
      if (on_step) on_step(*step);
    }
  });
}

}  // namespace trellis::trainer
