#include "trainer/optimizer/zero_redundancy_optimizer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/optimizer/make_update_rule.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {
namespace {

/// So many communications with padded copies are under way at most: one travels while the next one
/// is copied. With all of them, copies would take a row per rank of every parameter.
constexpr std::size_t kPaddedCopies = 2;

/// In the order of their start, which is that of their end.
class Gathers {
 public:
  void start(const ParameterBucket& bucket, const at::Tensor& shard) {
    if (bucket.is_padded()) end_all_but(kPaddedCopies - 1);
    under_way_.push_back(bucket.start_all_gather(shard));
  }
  void end_all_but(std::size_t count) {
    for (; under_way_.size() > count; under_way_.pop_front()) under_way_.front().finish();
  }

 private:
  std::deque<ParameterBucket::Gather> under_way_;
};

ParameterList& in_groups(const std::vector<NeuronZero1Optimizer::ParameterGroup>& groups,
                         ParameterList& parameters) {
  Problems problems;
  for (const NeuronZero1Optimizer::ParameterGroup& group : groups) {
    for (const std::string& name : group.names) {
      const auto found = std::ranges::find(parameters, name, &Parameter::name);
      if (found == parameters.end()) continue;  // of another stage
      if (found->group) problems.add("NeuronZero1Optimizer", name + " is in two groups");
      found->group = group.numbers;
    }
  }
  problems.throw_if_any();
  return parameters;
}

/// Formulas are not evaluated in half precision.
at::ScalarType compute_dtype(at::ScalarType stored) {
  return c10::promoteTypes(stored, at::kFloat);
}

}  // namespace

struct NeuronZero1Optimizer::Shard {
  std::unique_ptr<ParameterBucket> bucket;
  at::ScalarType dtype = at::kFloat;  ///< of the values that the rule updates
  at::Tensor master;                  ///< undefined: the weights themselves are updated
  std::vector<OptimizerState> states;
  std::optional<StochasticRounding> rounding;
  std::optional<PendingCollective> reduction;  ///< under way
  at::Tensor grad;          ///< this rank's part of the reduced gradient; set by reduce_gradients
  at::Tensor gradient_sum;  ///< fully sharded: of the micro-batches so far
  bool has_sum = false;     ///< of this step
  at::Tensor ema;
  at::Tensor
      saved_weights;  ///< while the moving average is in the weights, when there are no masters
};

/// The step's numbers, made once for each kind of bucket.
class NeuronZero1Optimizer::Numbers {
 public:
  Numbers(const OptimizerOptions& options, std::int64_t step, double lr)
      : options_(options), step_(step), lr_(lr) {}

  const StepNumbers& of(const OptimizerGroup& group, const at::TensorOptions& like) {
    StepNumbers& made = made_[{group, c10::typeMetaToScalarType(like.dtype())}];
    if (!made.empty()) return made;
    const std::vector<double> host =
        options_.rule->numbers(step_, lr_ * group.lr_scale, group.weight_decay);
    const at::Tensor device = at::tensor(host, like.dtype()).to(like.device());
    for (std::size_t i = 0; i < host.size(); ++i)
      made.push_back(device.select(0, static_cast<std::int64_t>(i)));
    return made;
  }

 private:
  const OptimizerOptions& options_;
  std::int64_t step_;
  double lr_;
  std::map<std::pair<OptimizerGroup, at::ScalarType>, StepNumbers> made_;
};

NeuronZero1Optimizer::NeuronZero1Optimizer(ParameterList& parameters, const ParallelState& parallel,
                                           const OptimizerOptions& options)
    : parallel_(parallel), options_(options) {
  if (options_.rule == nullptr) options_.rule = make_update_rule(OptimSection());
  const at::NoGradGuard no_grad;
  if (!parameters.empty()) {
    const at::Tensor& first = parameters.front().tensor;
    gradients_ = first.options().dtype(c10::promoteTypes(options_.grad_dtype, first.scalar_type()));
  }
  const std::int64_t cap = options_.zero1 ? options_.caps.reduce_scatter : options_.caps.all_reduce;
  const int dense = options_.zero1 ? parallel_.get_fsdp_sharding_group().size : 1,
            expert = options_.zero1 ? parallel_.get_fsdp_sharding_group(true).size : 1;
  for (auto& bucket : plan_buckets(parameters, options_.grad_dtype, cap, dense, expert))
    add_shard(std::move(bucket));
}

NeuronZero1Optimizer::NeuronZero1Optimizer(const std::vector<ParameterGroup>& groups,
                                           ParameterList& parameters, const ParallelState& parallel,
                                           const OptimizerOptions& options)
    : NeuronZero1Optimizer(in_groups(groups, parameters), parallel, options) {}

NeuronZero1Optimizer::~NeuronZero1Optimizer() = default;

const ParallelGroup& NeuronZero1Optimizer::holders_of(const Parameter& parameter) const {
  return parallel_.get_fsdp_sharding_group(parameter.experts.is_stacked());
}

ParallelGroup NeuronZero1Optimizer::sharding_group_of(const Parameter& parameter) const {
  return options_.zero1 ? holders_of(parameter) : ParallelGroup{};
}

OptimizerGroup NeuronZero1Optimizer::group_of(const Shard& shard) const {
  const Parameter& kind = shard.bucket->kind();
  if (kind.group) return *kind.group;
  return {options_.decay_norms_and_biases || kind.weight_decay ? options_.weight_decay : 0, 1};
}

void NeuronZero1Optimizer::add_shard(std::vector<Parameter*> parameters) {
  auto shard = std::make_unique<Shard>();
  const at::ScalarType weights = parameters.front()->tensor.scalar_type();
  const ParallelGroup sharding = sharding_group_of(*parameters.front());
  shard->dtype = c10::promoteTypes(options_.master_dtype, weights);
  shard->bucket = std::make_unique<ParameterBucket>(
      std::move(parameters), parallel_.get_tensor_model_parallel_group(), sharding,
      c10::promoteTypes(options_.grad_dtype, weights), parallel_.get_expert_model_parallel_group());
  check_dtypes_without_zero1(*shard);
  const ParameterBucket& bucket = *shard->bucket;
  if (shard->dtype != weights) shard->master = bucket.shard_of_parameters(shard->dtype);
  const at::ScalarType state_dtype =
      options_.rule->fp32_states() ? compute_dtype(shard->dtype) : shard->dtype;
  const at::TensorOptions like = bucket.options();
  shard->states = options_.rule->make_states(bucket.layout(), like.dtype(state_dtype));
  if (options_.stochastic_rounding && weights == at::kBFloat16)
    shard->rounding.emplace(bucket.layout(), options_.seed, like.device());
  if (options_.ema) shard->ema = bucket.shard_of_parameters(compute_dtype(shard->dtype));
  Shard* address = shard.get();
  if (bucket.is_fully_sharded()) {
    shard->gradient_sum = at::zeros({bucket.layout().elements}, like);
    shard->bucket->on_complete(options_.gradients_per_step,
                               [this, address] { reduce_pass(*address); });
  } else if (options_.gradients_per_step > 0 && data_parallel_size() > 1 && !bucket.kind().tied) {
    shard->bucket->on_complete(options_.gradients_per_step,
                               [this, address] { start_reduction(*address); });
  }
  shards_.push_back(std::move(shard));
}

void NeuronZero1Optimizer::check_dtypes_without_zero1(const Shard& shard) const {
  if (options_.zero1) return;
  const at::ScalarType weights = shard.bucket->kind().tensor.scalar_type();
  const auto refuse = [&](const char* what, at::ScalarType dtype) {
    throw ConfigError(c10::str("optimizer_config.", what, ": needs zero_one_enabled: expected ",
                               weights, " as the weights, got ", dtype, "; switch ZeRO-1 on or ",
                               what, " off"));
  };
  if (shard.dtype != weights) refuse("use_master_weights", shard.dtype);
  if (shard.bucket->main_grad().scalar_type() != weights)
    refuse("use_fp32_grad_acc", shard.bucket->main_grad().scalar_type());
}

void NeuronZero1Optimizer::end_padded_reductions(const ParameterBucket& next) {
  if (!next.is_padded()) return;
  for (; padded_reductions_.size() >= kPaddedCopies; padded_reductions_.pop_front()) {
    padded_reductions_.front()->reduction->complete();
  }
}

/// May run inside backward, on its thread, as soon as the bucket's last gradient is there.
void NeuronZero1Optimizer::start_reduction(Shard& shard) {
  const at::NoGradGuard no_grad;
  const ParameterBucket& bucket = *shard.bucket;
  at::Tensor grad = bucket.main_grad();
  const at::ScalarType dtype = options_.reduce_dtype.value_or(grad.scalar_type());
  if (bucket.kind().sequence_parallel_enabled)
    all_reduce(grad, parallel_.get_tensor_model_parallel_group());
  if (bucket.is_fully_sharded()) {
    shard.reduction = bucket.start_reduce_scatter(dtype);
  } else if (options_.zero1) {
    end_padded_reductions(bucket);
    shard.reduction = bucket.start_reduce_scatter(dtype);
    if (bucket.is_padded()) padded_reductions_.push_back(&shard);
  } else {
    if (data_parallel_size() > 1) grad.mul_(1.0 / data_parallel_size());
    const ParallelGroup& holders = holders_of(bucket.kind());
    shard.reduction =
        holders.size > 1 ? start_all_reduce(grad.to(dtype), holders) : PendingCollective(grad);
  }
}

/// Inside backward, when a micro-batch has given all gradients of the bucket. The reduction travels
/// while backward of the next unit runs.
void NeuronZero1Optimizer::reduce_pass(Shard& shard) {
  finish_passes(shard.bucket->kind().unit);
  if (!std::exchange(shard.has_sum, true)) shard.gradient_sum.zero_();
  start_reduction(shard);
  shard.bucket->release_gradient();
  passes_.push_back(&shard);
}

/// Waits for the reductions of all units but `unit_under_way`, and adds them to their sums.
void NeuronZero1Optimizer::finish_passes(int unit_under_way) {
  const at::NoGradGuard no_grad;
  while (!passes_.empty() && passes_.front()->bucket->kind().unit != unit_under_way) {
    Shard& shard = *passes_.front();
    passes_.pop_front();
    shard.gradient_sum.add_(shard.reduction->wait());
    shard.reduction.reset();
    if (shard.bucket->has_all_gradients()) start_sum_of_copies(shard);
  }
}

void NeuronZero1Optimizer::start_sum_of_copies(Shard& shard) {
  const ParallelGroup& copies = parallel_.get_fsdp_replica_group();
  if (copies.size == 1) return;
  const at::ScalarType dtype = options_.reduce_dtype.value_or(shard.gradient_sum.scalar_type());
  shard.reduction = start_all_reduce(shard.gradient_sum.to(dtype), copies);
}

void NeuronZero1Optimizer::skip_gradients(int microbatches) {
  for (const auto& shard : shards_) shard->bucket->skip(microbatches);
}

void NeuronZero1Optimizer::reduce_gradients() {
  const Scope scope("phase=grad_reduce");
  const at::NoGradGuard no_grad;
  for (const auto& shard : shards_) {
    if (shard->bucket->is_fully_sharded()) continue;
    shard->bucket->end_accumulation();
    if (!shard->reduction) start_reduction(*shard);
  }
  padded_reductions_.clear();
  finish_passes();
  for (const auto& shard : shards_) {
    if (!shard->bucket->is_fully_sharded()) continue;
    shard->bucket->end_accumulation();
    if (!shard->reduction) start_sum_of_copies(*shard);
  }
  // Experts too: their sum is over the tokens of all data-parallel ranks, which were sent to them.
  const int data_parallel = data_parallel_size();
  for (const auto& shard : shards_) {
    if (shard->bucket->is_fully_sharded()) {
      shard->grad = shard->gradient_sum;
      if (shard->reduction)
        shard->grad = shard->reduction->wait().to(shard->gradient_sum.scalar_type());
      shard->reduction.reset();
      shard->has_sum = false;
    } else {
      shard->grad = shard->reduction->wait().to(shard->bucket->main_grad().scalar_type());
      shard->reduction.reset();
    }
    if (options_.zero1 && data_parallel > 1) shard->grad.mul_(1.0 / data_parallel);
  }
}

/// Whole buckets where all rows count alike; tied copies do not count.
std::vector<GradientPart> NeuronZero1Optimizer::norm_parts() const {
  std::vector<GradientPart> parts;
  for (const auto& shard : shards_) {
    const Parameter& kind = shard->bucket->kind();
    if (kind.shared) continue;
    const bool everywhere = !options_.zero1 && !kind.experts.is_stacked();
    const int holders = everywhere ? parallel_.get_expert_model_parallel_size() : 1;
    const std::vector<ShardSlot>& slots = shard->bucket->layout().slots;
    if (std::ranges::none_of(slots,
                             [](const ShardSlot& slot) { return slot.row_weights.defined(); })) {
      parts.push_back({shard->grad, kind.tensor_model_parallel, 1, holders});
      continue;
    }
    for (const ShardSlot& slot : slots) {
      const at::Tensor values = shard->grad.narrow(0, slot.offset, slot.valid_elements());
      for (GradientPart& part :
           gradient_parts(*slot.parameter, values, slot.first_row * slot.row_elements)) {
        part.holders = holders;
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

at::Tensor NeuronZero1Optimizer::grad_norm(double norm_type) const {
  const Scope scope("phase=optimizer");
  const at::NoGradGuard no_grad;
  const GradNormGroups groups{parallel_.get_tensor_model_parallel_group(),
                              parallel_.get_pipeline_model_parallel_group(),
                              options_.zero1 ? parallel_.get_fsdp_sharding_group()
                                             : parallel_.get_expert_model_parallel_group()};
  std::vector<GradientPart> counted = norm_parts();
  // A rank may have nothing but tied copies, padding, or frozen weights: it adds zero.
  if (counted.empty()) counted.push_back({at::zeros({1}, gradients_), true});
  at::Tensor norm = get_grad_norm(counted, groups, norm_type);
  return gradient_scale_.defined() ? norm.mul_(gradient_scale_.to(norm.scalar_type())) : norm;
}

void NeuronZero1Optimizer::clip(const at::Tensor& norm) const {
  if (!options_.max_grad_norm && !gradient_scale_.defined()) return;
  std::vector<GradientPart> all;
  for (const auto& shard : shards_) all.push_back({shard->grad});
  clip_grads_with_norm(all, options_.max_grad_norm.value_or(kInfinityNorm), norm, gradient_scale_);
}

at::Tensor NeuronZero1Optimizer::step(double lr) {
  at::Tensor norm = grad_norm();
  step(lr, norm);
  return norm;
}

void NeuronZero1Optimizer::skip_step() {
  for (const auto& shard : shards_) shard->grad.reset();
  gradient_scale_.reset();
}

void NeuronZero1Optimizer::step(double lr, const at::Tensor& norm) {
  const Scope scope("phase=optimizer");
  const at::NoGradGuard no_grad;
  TORCH_CHECK(!shows_ema_,
              "step: the weights show their moving average; call swap_ema_weights() first");
  clip(norm);
  gradient_scale_.reset();
  Numbers numbers(options_, ++steps_, lr);
  Gathers gathers;
  for (const auto& shard : shards_) {
    const at::TensorOptions like = shard->grad.options().dtype(compute_dtype(shard->dtype));
    gathers.start(*shard->bucket, update(*shard, numbers.of(group_of(*shard), like)));
  }
  gathers.end_all_but(0);
}

/// Returns the shard's new weights in the model's type: they travel so, in half the bytes of the
/// masters.
at::Tensor NeuronZero1Optimizer::update(Shard& shard, const StepNumbers& numbers) {
  const at::ScalarType compute = compute_dtype(shard.dtype);
  const at::Tensor values =
      shard.master.defined() ? shard.master : shard.bucket->shard_of_parameters(compute);
  update_states(shard, values, numbers);
  shard.grad.reset();
  at::Tensor weights = as_weights(shard, values);
  if (shard.ema.defined()) update_ema(shard, shard.master.defined() ? values : weights);
  return weights;
}

/// Half-precision states are widened for the step and rounded again.
void NeuronZero1Optimizer::update_states(Shard& shard, const at::Tensor& values,
                                         const StepNumbers& numbers) {
  std::vector<OptimizerState> wide = shard.states;
  for (OptimizerState& state : wide) {
    for (at::Tensor& part : state.parts) part = part.to(values.scalar_type());
  }
  const ShardLayout& layout = shard.bucket->layout();
  options_.rule->apply(layout, {values, shard.grad.to(values.scalar_type()), wide}, numbers);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    for (std::size_t part = 0; part < wide[i].parts.size(); ++part) {
      at::Tensor& stored = shard.states[i].parts[part];
      const at::Tensor& result = wide[i].parts[part];
      if (stored.scalar_type() == result.scalar_type()) continue;
      const bool round = shard.rounding && stored.numel() == layout.elements;
      stored.copy_(round ? shard.rounding->round(layout, result, steps_, wide[i].name) : result);
    }
  }
}

at::Tensor NeuronZero1Optimizer::as_weights(const Shard& shard, const at::Tensor& values) const {
  if (shard.rounding)
    return shard.rounding->round(shard.bucket->layout(), values, steps_, "weights");
  return values.to(shard.bucket->kind().tensor.scalar_type());
}

void NeuronZero1Optimizer::update_ema(Shard& shard, const at::Tensor& weights) const {
  const EmaSection& ema = *options_.ema;
  if (steps_ < ema.start_step || steps_ % ema.apply_ema_every_n_steps != 0) return;
  shard.ema.mul_(ema.decay).add_(weights, 1 - ema.decay);
}

void NeuronZero1Optimizer::swap_ema_weights() {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(options_.ema, "swap_ema_weights: exp_manager.ema is not enabled");
  Gathers gathers;
  for (const auto& shard : shards_) {
    const at::ScalarType dtype = shard->bucket->kind().tensor.scalar_type();
    at::Tensor shown;
    if (!shows_ema_) {
      if (!shard->master.defined())
        shard->saved_weights = shard->bucket->shard_of_parameters(dtype);
      shown = shard->ema.to(dtype);
    } else {
      shown = shard->master.defined() ? as_weights(*shard, shard->master)
                                      : std::exchange(shard->saved_weights, {});
    }
    gathers.start(*shard->bucket, shown);
  }
  gathers.end_all_but(0);
  shows_ema_ = !shows_ema_;
}

at::Tensor NeuronZero1Optimizer::main_grad(const Parameter& parameter) const {
  for (const auto& shard : shards_) {
    if (at::Tensor grad = shard->bucket->main_grad_of(parameter); grad.defined()) return grad;
  }
  TORCH_CHECK(false, parameter.name, " is not a parameter of this optimizer");
}

void NeuronZero1Optimizer::for_each_reduced_gradient(
    const std::function<void(const ShardSlot&, const at::Tensor& rows)>& visit) const {
  for (const auto& shard : shards_) {
    for (const ShardSlot& slot : shard->bucket->layout().slots)
      visit(slot, shard->grad.narrow(0, slot.offset, slot.valid_elements()));
  }
}

void NeuronZero1Optimizer::for_each_gradient(
    const std::function<void(const at::Tensor&)>& visit) const {
  for (const auto& shard : shards_)
    visit(shard->bucket->is_fully_sharded() ? shard->gradient_sum : shard->bucket->main_grad());
}

void NeuronZero1Optimizer::for_each_state(
    const std::function<void(const at::Tensor&)>& visit) const {
  for (const auto& shard : shards_) {
    if (shard->master.defined()) visit(shard->master);
    if (shard->ema.defined()) visit(shard->ema);
    for (const OptimizerState& state : shard->states) {
      for (const at::Tensor& part : state.parts) visit(part);
    }
  }
}

void NeuronZero1Optimizer::for_each_parameter_state(
    const std::function<void(const ParameterState&)>& visit) const {
  for (const auto& shard : shards_) {
    const std::vector<ShardSlot>& slots = shard->bucket->layout().slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const ShardSlot& slot = slots[i];
      const auto of_slot = [&](const at::Tensor& flat) {
        return flat.narrow(0, slot.offset, slot.elements);
      };
      if (shard->master.defined())
        visit({slot, "fp32_param", of_slot(shard->master), StateExtent::kElements});
      if (shard->ema.defined()) visit({slot, "ema", of_slot(shard->ema), StateExtent::kElements});
      for (const OptimizerState& state : shard->states) {
        at::Tensor values = state.parts[state.parts.size() == 1 ? 0 : i];
        if (state.extent == StateExtent::kTensor) {
          values = values.select(0, static_cast<std::int64_t>(i));
        } else if (state.parts.size() == 1 && values.numel() == shard->bucket->layout().elements) {
          values = of_slot(values);
        }
        if (values.numel() > 0) visit({slot, state.name, values, state.extent});
      }
    }
  }
}

void NeuronZero1Optimizer::for_each_slot(const std::function<void(const ShardSlot&)>& visit) const {
  for (const auto& shard : shards_) {
    for (const ShardSlot& slot : shard->bucket->layout().slots) visit(slot);
  }
}

std::vector<NeuronZero1Optimizer::ParameterGroup> NeuronZero1Optimizer::param_groups() const {
  std::vector<ParameterGroup> groups{{{options_.weight_decay, 1}, {}}, {{0, 1}, {}}};
  const std::size_t own = groups.size();
  for (const auto& shard : shards_) {
    const Parameter& kind = shard->bucket->kind();
    std::size_t place = options_.decay_norms_and_biases || kind.weight_decay ? 0 : 1;
    if (kind.group) {
      place = own;
      while (place < groups.size() && groups[place].numbers != *kind.group) ++place;
      if (place == groups.size()) groups.push_back({*kind.group, {}});
    }
    for (const ShardSlot& slot : shard->bucket->layout().slots)
      groups[place].names.push_back(slot.parameter->name);
  }
  return groups;
}

at::Tensor parameter_norm(const ParameterList& parameters, const ParallelState& parallel) {
  const at::NoGradGuard no_grad;
  std::vector<GradientPart> parts;
  for (const Parameter& parameter : parameters) {
    for (GradientPart& part : gradient_parts(parameter, parameter.tensor.detach())) {
      part.holders = parameter.experts.is_stacked() ? 1 : parallel.get_expert_model_parallel_size();
      parts.push_back(std::move(part));
    }
  }
  if (parts.empty())
    parts.push_back(
        {at::zeros({1}, parameters.front().tensor.options().requires_grad(false)), true});
  return get_grad_norm(parts, {parallel.get_tensor_model_parallel_group(),
                               parallel.get_pipeline_model_parallel_group(),
                               parallel.get_expert_model_parallel_group()});
}

}  // namespace trellis::trainer
