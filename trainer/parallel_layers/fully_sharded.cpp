#include "trainer/parallel_layers/fully_sharded.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// Passes gradients on, and calls a function before.
class CallInBackward final : public Derivative {
 public:
  explicit CallInBackward(std::function<void()> call) : call_(std::move(call)) {}

 private:
  Tensors backward(Tensors grads) override {
    const at::NoGradGuard no_grad;
    call_();
    return grads;
  }
  std::function<void()> call_;
};

at::Tensor call_in_backward(const at::Tensor& tensor, std::function<void()> call) {
  if (!needs_derivative({tensor})) return tensor;
  at::Tensor same;
  {
    const BelowAutograd guard;
    same = tensor.detach();
  }
  attach(c10::make_intrusive<CallInBackward>(std::move(call)), {tensor}, {same});
  return same;
}

std::vector<std::int64_t> padded_shape(const at::Tensor& weight, int ranks) {
  std::vector<std::int64_t> shape = weight.sizes().vec();
  shape[0] = rows_per_shard(weight, ranks) * ranks;
  return shape;
}

}  // namespace

struct FullySharding::Unit {
  enum class Weights { kReleased, kUnderWay, kWhole };
  struct Gather {
    Parameter* parameter;
    at::Tensor whole;  ///< with padding after the last row
  };

  std::vector<Parameter*> parameters;
  Weights weights = Weights::kReleased;
  std::vector<Gather> gathers;                 ///< under way
  std::vector<PendingCollective> collectives;  ///< one for each group of ranks
};

FullySharding::FullySharding(const ParallelState& parallel) : parallel_(parallel) {}

FullySharding::~FullySharding() = default;

ParallelGroup FullySharding::group_of(const Parameter& parameter) const {
  return parallel_.get_fsdp_sharding_group(parameter.experts.is_stacked());
}

/// Fills the shard from the whole weight.
void FullySharding::keep_rows(Parameter& parameter) const {
  const ParallelGroup group = group_of(parameter);
  const at::Tensor whole = parameter.tensor.detach();
  const std::int64_t rows = whole.size(0), share = rows_per_shard(whole, group.size),
                     row_elements = whole.numel() / rows,
                     first = std::min(share * group.rank, rows),
                     count = std::min(share, rows - first);
  if (!parameter.shard.defined())
    parameter.shard = at::zeros({share * row_elements}, whole.options().requires_grad(false));
  if (count > 0)
    parameter.shard.narrow(0, 0, count * row_elements)
        .copy_(whole.narrow(0, first, count).reshape({-1}));
}

void FullySharding::end_unit(ParameterList& parameters) {
  const at::NoGradGuard no_grad;
  const int index = num_units();
  auto unit = std::make_unique<Unit>();
  unit->weights = Unit::Weights::kWhole;
  for (; seen_ < parameters.size(); ++seen_) {
    Parameter& parameter = parameters[seen_];
    parameter.unit = index;
    keep_rows(parameter);
    unit->parameters.push_back(&parameter);
  }
  units_.push_back(std::move(unit));
  release(index);
}

/// In the shape of the weight, one number in memory.
at::Tensor FullySharding::released(const at::Tensor& weight) {
  at::Tensor& number = not_a_number_[weight.scalar_type()];
  if (!number.defined())
    number = at::full({1}, std::numeric_limits<double>::quiet_NaN(),
                      weight.options().requires_grad(false));
  return number.expand(weight.sizes());
}

void FullySharding::start_gather(int index) {
  Unit& unit = *units_[static_cast<std::size_t>(index)];
  if (unit.weights != Unit::Weights::kReleased) return;
  const at::NoGradGuard no_grad;
  struct Members {
    ParallelGroup group;
    std::vector<at::Tensor> shards, wholes;
  };
  std::vector<Members> all{{parallel_.get_fsdp_sharding_group(/*of_experts=*/false), {}, {}},
                           {parallel_.get_fsdp_sharding_group(/*of_experts=*/true), {}, {}}};
  for (Parameter* parameter : unit.parameters) {
    Members& members = all[parameter->experts.is_stacked() ? 1 : 0];
    at::Tensor whole =
        at::empty(padded_shape(parameter->tensor, members.group.size), parameter->shard.options());
    members.shards.push_back(parameter->shard);
    members.wholes.push_back(whole.view({-1}));
    unit.gathers.push_back({parameter, std::move(whole)});
  }
  for (Members& members : all) {
    if (members.shards.empty()) continue;
    if (members.group.size > 1) {
      unit.collectives.push_back(start_all_gather_coalesced(
          std::move(members.shards), std::move(members.wholes), members.group));
    } else {
      for (std::size_t i = 0; i < members.shards.size(); ++i)
        members.wholes[i].copy_(members.shards[i]);
    }
  }
  unit.weights = Unit::Weights::kUnderWay;
}

void FullySharding::gather(int index) {
  start_gather(index);
  Unit& unit = *units_[static_cast<std::size_t>(index)];
  if (unit.weights == Unit::Weights::kUnderWay) {
    for (PendingCollective& collective : unit.collectives) collective.wait();
    unit.collectives.clear();
    for (const Unit::Gather& done : unit.gathers)
      done.parameter->tensor.set_data(done.whole.narrow(0, 0, done.parameter->tensor.size(0)));
    unit.gathers.clear();
    unit.weights = Unit::Weights::kWhole;
  }
  if (tied_ && index == num_units() - 1 && index > 0) gather(0);
}

void FullySharding::release(int index) {
  Unit& unit = *units_[static_cast<std::size_t>(index)];
  if (unit.weights == Unit::Weights::kWhole) {
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : unit.parameters)
      parameter->tensor.set_data(released(parameter->tensor));
    unit.weights = Unit::Weights::kReleased;
  }
  if (tied_ && index == num_units() - 1 && index > 0) release(0);
}

/// Between forward and backward: those whose backward comes next. REQUIRES: gradients.
bool FullySharding::is_kept(int unit) const { return unit >= num_units() - 2 && unit > 0; }

at::Tensor FullySharding::run(int unit, const at::Tensor& input, const Module& module) {
  const bool trains = at::GradMode::is_enabled() && (!input.defined() || input.requires_grad());
  gather(unit);
  if (unit + 1 < num_units()) start_gather(unit + 1);
  const at::Tensor own =
      input.defined() && trains ? call_in_backward(input, [this, unit] { release(unit); }) : input;
  at::Tensor output = module(own);
  if (!trains || !is_kept(unit)) release(unit);
  if (!trains || !input.defined()) return output;
  return call_in_backward(output, [this, unit] {
    gather(unit);
    if (unit > 1) start_gather(unit - 1);
  });
}

FullySharding::Whole::Whole(FullySharding* sharding) : sharding_(sharding) {
  if (sharding_ == nullptr) return;
  for (int unit = 0; unit < sharding_->num_units(); ++unit) sharding_->gather(unit);
}

FullySharding::Whole::~Whole() {
  if (sharding_ == nullptr) return;
  const at::NoGradGuard no_grad;
  for (const auto& unit : sharding_->units_) {
    for (Parameter* parameter : unit->parameters) sharding_->keep_rows(*parameter);
  }
  for (int unit = 0; unit < sharding_->num_units(); ++unit) sharding_->release(unit);
}

}  // namespace trellis::trainer
