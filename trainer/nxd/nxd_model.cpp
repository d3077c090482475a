#include "trainer/nxd/nxd_model.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/loop/rank_model.h"
#include "trainer/nxd/saved_lora.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

void check_inputs(const MicroBatch& batch, const std::vector<std::string>& names) {
  const std::map<std::string, const at::Tensor*> fields{{"input_ids", &batch.input_ids},
                                                        {"labels", &batch.labels},
                                                        {"loss_mask", &batch.loss_mask},
                                                        {"position_ids", &batch.position_ids},
                                                        {"attention_mask", &batch.attention_mask}};
  for (const std::string& name : names) {
    if (!fields.at(name)->defined())
      throw ConfigError("run_train: the batch has no " + name +
                        ", which pipeline_config.input_names expects");
  }
  for (const auto& [name, tensor] : fields) {
    if (tensor->defined() && !tensor->is_cpu()) {
      throw ConfigError("run_train: " + name +
                        ": expected a tensor on the CPU (micro-batches move to the device one by "
                        "one), got one on " +
                        c10::str(tensor->device()));
    }
  }
}

void check_sequence(const MicroBatch& batch, int context_parallel_size) {
  const std::int64_t length = batch.input_ids.dim() > 1 ? batch.input_ids.size(1) : 0;
  if (length % context_parallel_size != 0)
    throw ConfigError(
        c10::str("run_train: context_parallel_size cuts the sequence: expected a multiple of ",
                 context_parallel_size, " positions, got ", length));
}

ParallelSizes sizes_of(const NxDConfig& config) {
  ParallelSizes sizes;
  sizes.tensor_model_parallel_size = config.tensor_parallel_size;
  sizes.pipeline_model_parallel_size = config.pipeline_parallel_size;
  sizes.context_parallel_size = config.context_parallel_size;
  sizes.expert_model_parallel_size = config.expert_parallel_size;
  sizes.kv_size_multiplier = config.kv_size_multiplier;
  sizes.kv_replica_order = config.kv_replica_order;
  return sizes;
}

/// Sums each gradient over the group and divides by `divisor`; one communication per type.
void all_reduce_gradients(const std::vector<Parameter*>& parameters, const ParallelGroup& group,
                          int divisor) {
  if (group.size == 1 && divisor == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (Parameter* parameter : parameters) {
    at::Tensor& grad = parameter->tensor.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(parameter->tensor);
    by_type[grad.scalar_type()].push_back(grad);
  }
  for (const auto& [type, gradients] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& grad : gradients) flat.push_back(grad.reshape(-1));
    const at::Tensor sum = all_reduce(at::cat(flat).div_(divisor), group);
    std::int64_t offset = 0;
    for (const at::Tensor& grad : gradients) {
      grad.copy_(sum.narrow(0, offset, grad.numel()).view(grad.sizes()));
      offset += grad.numel();
    }
  }
}

}  // namespace

NxDModel::NxDModel(const NxDConfig& config, runtime::RankContext& rank,
                   const ModelFunction& model_fn)
    : config_(config),
      pipeline_(config.pipeline_config.value_or(PipelineConfig{})),
      parallel_(ParallelState::initialize_model_parallel(rank, sizes_of(config))),
      context_(make_context(rank)) {
  if (rank.shape_only() && config.pipeline_parallel_size > 1 && !pipeline_.border) {
    throw ConfigError(
        "pipeline_config.border: a shape-only run sends no values, so that borders cannot be "
        "learned: expected their sizes");
  }
  const Scope scope("phase=init");
  build_in_waves(rank, model_fn);
  tied_.emplace(engine_->stages(), parameters_, engine_->shape(), parallel_,
                pipeline_group_factory(rank, parallel_));
  if (lora_ && !rank.shape_only()) check_adapters();
}

void NxDModel::build_in_waves(runtime::RankContext& rank, const ModelFunction& model_fn) {
  // Without data no one holds anything: all at once.
  const int at_a_time =
      rank.shape_only() ? rank.world_size() : *config_.model_init_config.sequential_move_factor;
  for (int first = 0; first < rank.world_size(); first += at_a_time) {
    if (rank.rank() >= first && rank.rank() < first + at_a_time) {
      const SequentialModel model = model_fn(context_);
      take_adapters(model);
      auto stages = build_stages(model);
      const PipelineOptions options = engine_options(stages);
      engine_.emplace(std::move(stages), context_, options);
    }
    rank.host_barrier();
  }
}

void NxDModel::take_adapters(const SequentialModel& model) {
  if (model.lora() && config_.lora_config && *model.lora() != *config_.lora_config)
    throw ConfigError(
        "lora_config: the model is a LoRAModel with another LoraConfig: expected one of the two");
  const std::optional<LoraConfig> asked = model.lora() ? model.lora() : config_.lora_config;
  config_.lora_config.reset();
  if (!asked || !asked->enable_lora) return;
  Problems problems;
  check_lora_config(*asked, problems);
  problems.throw_if_any();
  config_.lora_config = asked->load_lora_from_ckpt ? with_saved_numbers(*asked) : *asked;
  lora_ = lora_section_of(*config_.lora_config);
  context_.lora = &*lora_;
}

/// Each name of lora_config must be that of a layer, on whatever stage. Every rank of a pipeline
/// throws the same.
void NxDModel::check_adapters() const {
  std::vector<std::pair<const char*, LoraSection>> wanted;
  for (const std::string& name : lora_->targets) {
    wanted.emplace_back("target_modules", LoraSection{});
    wanted.back().second.targets = {name};
  }
  if (!lora_->target_regex.empty()) {
    wanted.emplace_back("target_modules_regex", LoraSection{});
    wanted.back().second.target_regex = lora_->target_regex;
  }
  std::vector<double> found;
  std::string layers;
  for (const auto& [key, one] : wanted) {
    const auto is_of = [&one = one](const Parameter& parameter) {
      const std::size_t end = parameter.name.find(".lora_A.");
      return end != std::string::npos && one.targets_module(parameter.name.substr(0, end));
    };
    found.push_back(static_cast<double>(std::ranges::count_if(parameters_, is_of)));
  }
  const at::Tensor counts = all_reduce(at::tensor(found, at::kFloat).to(context_.device),
                                       parallel_.get_pipeline_model_parallel_group())
                                .cpu();
  for (const std::string& layer : layer_names_) layers += (layers.empty() ? "" : ", ") + layer;
  Problems problems;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const LoraSection& one = wanted[i].second;
    if (counts[static_cast<std::int64_t>(i)].item<double>() > 0) continue;
    problems.add(std::string("lora_config.") + wanted[i].first,
                 "`" + (one.target_regex.empty() ? one.targets.front() : one.target_regex) +
                     "` names no parallel layer of the model, whose layers are " + layers);
  }
  problems.throw_if_any();
}

ModuleContext NxDModel::make_context(const runtime::RankContext& rank) {
  ModuleContext context;
  context.parallel = &parallel_;
  context.parameters = &parameters_;
  context.backward = std::make_shared<BackwardLayer>();
  context.device = rank.device();
  context.dtype = config_.dtype;
  context.reduce_dtype = config_.dtype;
  context.sequence_parallel = config_.sequence_parallel;
  context.pad_model = config_.pad_model;
  context.shape_only = rank.shape_only();
  context.seed = config_.seed;
  return context;
}

PipelineOptions NxDModel::engine_options(
    const std::vector<std::unique_ptr<PipelineStage>>& stages) const {
  PipelineOptions options;
  options.num_microbatches = pipeline_.num_microbatches;
  options.border = pipeline_.border;
  options.deallocate_pipeline_outputs = pipeline_.deallocate_pipeline_outputs;
  options.return_mb_loss = pipeline_.return_mb_loss;
  options.broadcast_and_average_loss = pipeline_.broadcast_and_average_loss;
  options.trace_file_path = pipeline_.trace_file_path;
  for (const auto& stage : stages) {
    const auto& layers = static_cast<const SequentialStage&>(*stage).layers();
    options.trace_title += (options.trace_title.empty() ? "" : "; ") + layers.front().name + " … " +
                           layers.back().name;
  }
  return options;
}

std::vector<std::unique_ptr<PipelineStage>> NxDModel::build_stages(const SequentialModel& model) {
  for (const LayerSpec& layer : model.layers()) layer_names_.push_back(layer.name);
  const std::vector<LayerRange> ranges = partition_model(model, config_);
  const PipelineShape shape{pipeline_.num_microbatches, config_.pipeline_parallel_size,
                            pipeline_.virtual_pipeline_size};
  std::vector<std::unique_ptr<PipelineStage>> stages;
  for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
    const int stage = shape.stage(parallel_.get_pipeline_model_parallel_rank(), chunk);
    const StageSlot slot{stage, shape.num_stages(), ranges[static_cast<std::size_t>(stage)]};
    stages.push_back(std::make_unique<SequentialStage>(model, config_, context_, slot));
  }
  return stages;
}

bool NxDModel::knows_layer_of(const std::string& parameter) const {
  return std::ranges::any_of(
      layer_names_, [&](const std::string& layer) { return parameter.starts_with(layer + "."); });
}

bool NxDModel::has_layer_of(const std::string& parameter) const {
  return std::ranges::any_of(
      named_modules(), [&](const auto& layer) { return parameter.starts_with(layer.first + "."); });
}

void NxDModel::set_layer_hook(const LayerHook& hook) {
  for (const auto& stage : engine_->stages())
    static_cast<SequentialStage&>(*stage).set_layer_hook(hook);
}

std::vector<std::vector<std::string>> NxDModel::tied_names() const {
  std::vector<std::vector<std::string>> names;
  for (const auto& stage : engine_->stages()) {
    for (const TiedWeight& weight : stage->tied_weights()) {
      names.emplace_back();
      for (const auto& copy : weight.copies) names.back().push_back(copy.parameter);
    }
  }
  return names;
}

const SequentialStage& NxDModel::stage(std::size_t chunk) const {
  return static_cast<const SequentialStage&>(*engine_->stages()[chunk]);
}

std::vector<MicroBatch> NxDModel::split(const MicroBatch& batch) const {
  check_inputs(batch, pipeline_.input_names.empty() ? std::vector<std::string>{"input_ids"}
                                                    : pipeline_.input_names);
  check_sequence(batch, config_.context_parallel_size);
  const std::int64_t count = pipeline_.num_microbatches, rows = batch.input_ids.size(0);
  if (rows % count != 0) {
    throw ConfigError(
        c10::str("run_train: a batch is cut into num_microbatches parts along dimension 0: "
                 "expected a multiple of ",
                 count, " rows, got ", rows));
  }
  std::vector<MicroBatch> parts(static_cast<std::size_t>(count));
  for (std::int64_t m = 0; m < count; ++m) {
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, m * rows / count, rows / count) : tensor;
    };
    MicroBatch& micro_batch = parts[static_cast<std::size_t>(m)];
    micro_batch.input_ids = part(batch.input_ids);
    micro_batch.labels = part(batch.labels);
    micro_batch.loss_mask = part(batch.loss_mask);
    micro_batch.position_ids = part(batch.position_ids);
    micro_batch.attention_mask = part(batch.attention_mask);
    if (std::ssize(batch.places) != rows) continue;
    const auto first = batch.places.begin() + m * rows / count;
    micro_batch.places.assign(first, first + rows / count);
  }
  take_sequence_parts(parts, context_);
  return parts;
}

at::Tensor NxDModel::returned(const at::Tensor& loss) const {
  return loss.defined() && pipeline_.return_loss_on_cpu ? loss.cpu() : loss;
}

at::Tensor NxDModel::run_train(const MicroBatch& batch) {
  train();
  return returned(engine_->run_train(split(batch), [this] {
    if (!optimizer_reduces_) reduce_gradients();
  }));
}

at::Tensor NxDModel::run_eval(const MicroBatch& batch) {
  if (config_.pipeline_parallel_size == 1)
    throw ConfigError("run_eval: expected pipeline_parallel_size 2 or more, got 1: call forward()");
  eval();
  return returned(engine_->run_eval(split(batch)));
}

at::Tensor NxDModel::forward(const MicroBatch& batch) {
  if (config_.pipeline_parallel_size > 1) {
    throw ConfigError("forward: this rank holds a part of the model (pipeline_parallel_size " +
                      std::to_string(config_.pipeline_parallel_size) +
                      "): call run_train or run_eval");
  }
  check_sequence(batch, config_.context_parallel_size);
  std::vector<MicroBatch> parts{batch};
  take_sequence_parts(parts, context_);
  MicroBatch here = parts.front();
  for (at::Tensor* field :
       {&here.input_ids, &here.labels, &here.loss_mask, &here.position_ids, &here.attention_mask}) {
    if (field->defined()) *field = field->to(context_.device);
  }
  at::Tensor value;
  for (std::size_t chunk = 0; chunk < engine_->stages().size(); ++chunk)
    value = stage(chunk).output(value, here);
  return value;
}

/// Without an NxDOptimizer the gradients are where LibTorch's own optimizers look for them.
void NxDModel::reduce_gradients() {
  const at::NoGradGuard no_grad;
  tied_->sum_gradients([](const Parameter& parameter) { return parameter.tensor.grad(); });
  const Scope scope("phase=grad_reduce");
  std::vector<Parameter*> dense, experts, partial;
  for (Parameter& parameter : parameters_) {
    if (!parameter.tensor.requires_grad()) continue;
    (parameter.experts.is_stacked() ? experts : dense).push_back(&parameter);
    if (parameter.sequence_parallel_enabled) partial.push_back(&parameter);
  }
  all_reduce_gradients(partial, parallel_.get_tensor_model_parallel_group(), 1);
  // Tokens of all these ranks were sent to an expert: its gradient is their sum.
  const ParallelGroup& holders = parallel_.get_zero1_sharding_group();
  all_reduce_gradients(dense, holders, holders.size);
  all_reduce_gradients(experts, parallel_.get_expert_data_parallel_group(), holders.size);
}

std::vector<std::pair<std::string, at::Tensor>> NxDModel::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const Parameter& parameter : parameters_)
    named.emplace_back(parameter.name, parameter.tensor);
  return named;
}

std::vector<at::Tensor> NxDModel::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> NxDModel::named_modules()
    const {
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> named;
  for (std::size_t chunk = 0; chunk < engine_->stages().size(); ++chunk) {
    for (const SequentialStage::Layer& layer : stage(chunk).layers())
      named.emplace_back(layer.name, layer.built.module);
  }
  return named;
}

std::vector<std::pair<std::string, at::Tensor>> NxDModel::named_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& [name, module] : named_modules()) {
    for (const auto& buffer : module->named_buffers())
      named.emplace_back(name + "." + buffer.key(), buffer.value());
  }
  return named;
}

std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> NxDModel::local_modules() const {
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> stages(engine_->stages().size());
  for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
    for (const SequentialStage::Layer& layer : stage(chunk).layers())
      stages[chunk].push_back(layer.built.module);
  }
  return stages;
}

std::shared_ptr<LocalModule> NxDModel::local_module(std::size_t chunk) {
  const std::size_t chunks = engine_->stages().size();
  if (chunk >= chunks)
    throw ConfigError(c10::str("local_module: this rank has ", chunks,
                               " virtual stages: expected less than that, got ", chunk));
  std::shared_ptr<LocalModule>& module = local_modules_[chunk];
  if (!module) module = std::make_shared<LocalModule>(stage(chunk), parameters_);
  return module;
}

std::vector<std::shared_ptr<torch::nn::Module>> NxDModel::original_module() const {
  if (config_.pipeline_parallel_size > 1) {
    throw ConfigError(
        "original_module: only this rank's layers are built: expected pipeline_parallel_size 1; "
        "local_modules() has them");
  }
  std::vector<std::shared_ptr<torch::nn::Module>> layers;
  for (const auto& [name, module] : named_modules()) layers.push_back(module);
  return layers;
}

void NxDModel::train(bool on) {
  for (const auto& [name, module] : named_modules()) module->train(on);
}

NxDModel::StateDict NxDModel::state_dict() const {
  StateDict state;
  for (const auto& [name, tensor] : named_parameters()) state[name] = tensor.detach();
  for (const auto& [name, tensor] : named_buffers()) state[name] = tensor.detach();
  return state;
}

NxDModel::LoadResult NxDModel::load_state_dict(const StateDict& state, bool strict) {
  const at::NoGradGuard no_grad;
  LoadResult result;
  const StateDict own = state_dict();
  Problems problems;
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) {
      result.missing_keys.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      problems.add(name,
                   c10::str("expected sizes ", tensor.sizes(), ", got ", found->second.sizes()));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name)) result.unexpected_keys.push_back(name);
  }
  if (strict) {
    for (const std::string& name : result.missing_keys)
      problems.add(name, "expected in the state, missing");
    for (const std::string& name : result.unexpected_keys)
      problems.add(name, "unexpected: this rank has no parameter or buffer of this name");
  }
  problems.throw_if_any();
  for (const auto& [name, tensor] : own) {
    if (const auto found = state.find(name); found != state.end())
      at::Tensor(tensor).copy_(found->second);
  }
  return result;
}

}  // namespace trellis::trainer
