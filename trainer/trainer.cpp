#include "trainer/trainer.h"

#include <optional>

#include <ATen/ops/stack.h>

#include "device/plugin.h"
#include "runtime/device_plugin.h"
#include "trainer/models/llama/modeling_llama.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/pipeline/model.h"
#include "trainer/pipeline/partition.h"
#include "trainer/utils/lr_scheduler.h"

namespace trellis::trainer {
namespace {

at::ScalarType model_dtype(const PrecisionSection& precision) {
  if (precision.type == "mixed_precision") return at::kBFloat16;
  if (precision.type == "fp32") return at::kFloat;
  TORCH_INTERNAL_ASSERT(precision.type == "fp64", "precision.type ", precision.type, " passed validation");
  return at::kDouble;
}

ModuleContext module_context(const RunConfig& config, const runtime::RankContext& rank, const ParallelState& parallel,
                             ParameterList& parameters) {
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.backward = std::make_shared<BackwardLayer>();
  context.device = rank.device();
  context.dtype = model_dtype(config.precision);
  context.reduce_dtype = context.dtype;
  context.sequence_parallel = config.distributed_strategy.sequence_parallel && config.tp() > 1;
  context.shape_only = rank.shape_only();
  context.seed = config.seed;
  return context;
}

BorderTensor stage_border(const RunConfig& config, const ModuleContext& context) {
  const std::int64_t share = context.sequence_parallel ? config.tp() : 1;
  return {{config.model.encoder_seq_length / share, config.data.micro_batch_size, config.model.hidden_size},
          at::TensorOptions().dtype(context.dtype).device(context.device)};
}

OptimizerOptions optimizer_options(const RunConfig& config) {
  const at::ScalarType dtype = model_dtype(config.precision);
  const OptimSection& optim = config.model.optim;
  OptimizerOptions options;
  options.adamw = {optim.beta1, optim.beta2, optim.eps};
  options.weight_decay = optim.weight_decay;
  options.max_grad_norm = config.trainer.gradient_clip_val;
  options.zero1 = config.distributed_strategy.zero1;
  // fp32 and fp64 runs keep their one type; the two flags only matter for half-precision weights.
  const bool half = dtype == at::kBFloat16;
  options.grad_dtype = half && config.precision.fp32_grad_acc ? at::kFloat : dtype;
  options.master_dtype = half && config.precision.master_weights ? at::kFloat : dtype;
  return options;
}

}  // namespace

struct Trainer::Impl {
  Impl(const RunConfig& run, runtime::RankContext& rank_context, std::shared_ptr<const DataModule> data_module, const ParallelState& state)
      : config(run), rank(rank_context), data(std::move(data_module)), parallel(state) {
    const Scope scope("phase=init");
    const ModuleContext context = module_context(config, rank, parallel, parameters);
    const auto stages = partition_layers(config.model.num_layers, parallel.get_pipeline_model_parallel_size());
    const LayerRange layers = stages[static_cast<std::size_t>(parallel.get_pipeline_model_parallel_rank())];
    model.emplace(std::make_unique<LlamaForCausalLM>(config.model, context, layers), parallel, config.num_microbatches(),
                  stage_border(config, context), context.backward);
    optimizer.emplace(parameters, parallel, optimizer_options(config));
    account_memory();
  }

  void fit(const StepCallback& on_step) {
    for (std::int64_t step = 0; step < config.trainer.max_steps && !rank.stop_requested(); ++step) {
      rank.begin_step(step + 1);
      const StepResult result = training_step(step);
      if (const auto end_step = device_end_step()) rank.plugin()->check(end_step(result.step));
      rank.host_barrier();
      if (rank.rank() == 0) on_step(result);
      rank.host_barrier();
    }
  }

  StepResult training_step(std::int64_t step) {
    StepResult result;
    result.step = step + 1;
    result.lr = learning_rate(config.model.optim, config.trainer.max_steps, step);
    const auto micro_batches = data->micro_batches(step, parallel.get_data_parallel_rank());
    const at::Tensor loss = model->run_train(micro_batches, [this] { optimizer->reduce_gradients(); });
    const at::Tensor norm = optimizer->step(result.lr);
    const at::Tensor numbers = at::stack({loss, norm}).cpu();  // the step's only wait for the device
    result.loss = numbers[0].item<double>();
    result.grad_norm = numbers[1].item<double>();
    return result;
  }

  [[nodiscard]] auto device_end_step() const -> decltype(trellis_device_plugin_t::end_step) {
    return rank.plugin() != nullptr ? rank.plugin()->api().end_step : nullptr;
  }

  /// Tells the device what the long-lived buffers are.
  void account_memory() {
    if (rank.plugin() == nullptr || rank.plugin()->api().set_category == nullptr) return;
    enum Category { kParameter, kGradient, kOptimizerState };  // as trellis::device::BufferCategory
    const auto mark = [this](Category category) {
      return [this, category](const at::Tensor& tensor) { rank.plugin()->check(rank.plugin()->api().set_category(&tensor, category)); };
    };
    for (const Parameter& parameter : parameters) mark(kParameter)(parameter.tensor);
    optimizer->for_each_gradient(mark(kGradient));
    optimizer->for_each_state(mark(kOptimizerState));
  }

  const RunConfig& config;
  runtime::RankContext& rank;
  std::shared_ptr<const DataModule> data;
  ParallelState parallel;
  ParameterList parameters;
  std::optional<NxDPPModel> model;
  std::optional<NeuronZero1Optimizer> optimizer;
};

Trainer::Trainer(const RunConfig& config, runtime::RankContext& rank, std::shared_ptr<const DataModule> data)
    : Trainer(config, rank, std::move(data), ParallelState::initialize_model_parallel(rank, config.tp(), config.pp())) {}

Trainer::Trainer(const RunConfig& config, runtime::RankContext& rank, std::shared_ptr<const DataModule> data, const ParallelState& parallel)
    : impl_(std::make_unique<Impl>(config, rank, std::move(data), parallel)) {}

Trainer::~Trainer() = default;

void Trainer::fit(const StepCallback& on_step) { impl_->fit(on_step); }

std::map<std::string, Trainer::LocalWeight> Trainer::local_weights() const {
  std::map<std::string, LocalWeight> weights;
  for (const Parameter& parameter : impl_->parameters) {
    weights[parameter.name] = {parameter.tensor.detach().cpu().clone(), parameter.partition_dim, parameter.partition_stride};
  }
  return weights;
}

}  // namespace trellis::trainer
