#include "trainer/parallel_layers/checkpointing.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace trellis::trainer {
namespace {

/// Puts a step position back where it was, whatever happens in between.
class PositionGuard {
 public:
  PositionGuard(std::shared_ptr<StepPosition> position, const StepPosition& now)
      : position_(std::move(position)), before_(*position_) {
    *position_ = now;
  }
  PositionGuard(const PositionGuard&) = delete;
  PositionGuard& operator=(const PositionGuard&) = delete;
  ~PositionGuard() { *position_ = before_; }

 private:
  std::shared_ptr<StepPosition> position_;
  StepPosition before_;
};

/// Autocast of one device type as it was when the object was made; apply() sets it and gives back
/// what it replaced.
struct Autocast {
  explicit Autocast(at::DeviceType type)
      : device(type),
        enabled(at::autocast::is_autocast_enabled(type)),
        dtype(at::autocast::get_autocast_dtype(type)) {}
  void apply() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& now) : before_(now.device) { now.apply(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;
  ~AutocastGuard() { before_.apply(); }

 private:
  Autocast before_;
};

/// Runs the function again and backward through it. Gradients of weights go where backward of the
/// weights goes; those of the inputs are returned. An ordinary node, not a Derivative: what it runs
/// must be recorded.
class CheckpointBackward final : public torch::autograd::Node {
 public:
  CheckpointBackward(std::shared_ptr<StepPosition> position, CheckpointedFunction function,
                     const std::vector<at::Tensor>& inputs, const Autocast& autocast)
      : position_(std::move(position)),
        at_forward_(*position_),
        function_(std::move(function)),
        autocast_(autocast) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }
  void release_variables() override { inputs_.clear(); }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!inputs_.empty(),
                "checkpoint: backward ran already; a recomputation can be used once");
    std::vector<at::Tensor> inputs;
    for (const auto& saved : inputs_) {
      at::Tensor input = saved.unpack();
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad())
                                       : input);
    }
    inputs_.clear();
    run_again(inputs, grads[0]);
    torch::autograd::variable_list result;
    for (const at::Tensor& input : inputs)
      result.push_back(input.defined() ? input.grad() : at::Tensor());
    return result;
  }

  void run_again(const std::vector<at::Tensor>& inputs, const at::Tensor& grad) const {
    const PositionGuard position(position_, at_forward_);
    const at::AutoGradMode recording(true);
    at::Tensor output;
    {
      const AutocastGuard autocast(autocast_);
      output = function_(inputs);
    }
    torch::autograd::backward({output}, {grad});
  }

  std::shared_ptr<StepPosition> position_;
  StepPosition at_forward_;
  CheckpointedFunction function_;
  Autocast autocast_;
  std::vector<torch::autograd::SavedVariable> inputs_;
};

}  // namespace

at::Tensor checkpoint(const std::shared_ptr<StepPosition>& position,
                      const CheckpointedFunction& function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  TORCH_CHECK(torch::autograd::any_variable_requires_grad(inputs), "checkpoint: none of the ",
              inputs.size(),
              " inputs requires a gradient, so those of the weights inside would be lost: expected "
              "at least one; call requires_grad_() on the input or leave this part out of the "
              "recomputation");
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = function(inputs);
  }
  for (const at::Tensor& input : inputs)
    TORCH_CHECK(!output.is_same(input),
                "checkpoint: the function must not return one of its inputs");
  // Autograd lets no one write to a view that was made without it, which the next layer may.
  if (output.is_view()) output = output.detach();
  const Autocast autocast(output.device().type());
  const auto node = c10::make_intrusive<CheckpointBackward>(position, function, inputs, autocast);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(output, node);
  return output;
}

at::Tensor checkpoint(const ModuleContext& context, const CheckpointedFunction& function,
                      const std::vector<at::Tensor>& inputs) {
  return checkpoint(context.position, function, inputs);
}

}  // namespace trellis::trainer
