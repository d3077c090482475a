#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace trellis::trainer {

/// A hand-written derivative. Used where the formula holds fewer operations, less memory or a
/// communication that autograd's own would not. It differs from torch::autograd::Function in that
/// its state is ordinary members and that it costs one allocation.
///
///   at::Tensor output;
///   { BelowAutograd guard; output = …; }
///   if (needs_derivative({input})) attach(make_intrusive<MyDerivative>(…), {input}, {output});
class Derivative : public torch::autograd::Node {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Keeps a tensor until backward ran. An in-place change in between is an error there.
  void save(const at::Tensor& tensor) { saved_.emplace_back(tensor, /*is_output=*/false); }
  void release_variables() final { saved_.clear(); }

 protected:
  [[nodiscard]] at::Tensor saved(std::size_t i) const {
    TORCH_CHECK(i < saved_.size(), name(),
                ": backward ran already; this derivative can be used once");
    return saved_[i].unpack();
  }
  /// Gradients of the outputs (all defined) to gradients of the inputs, in the order given to
  /// attach().
  virtual Tensors backward(Tensors grads) = 0;

 private:
  Tensors apply(Tensors&& grads) final {
    for (const at::Tensor& grad : grads)
      TORCH_INTERNAL_ASSERT(grad.defined(), name(), ": an output took no part in the loss");
    at::AutoDispatchBelowADInplaceOrView below;
    return backward(std::move(grads));
  }

  std::vector<torch::autograd::SavedVariable> saved_;
};

using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

inline bool needs_derivative(const Derivative::Tensors& inputs) {
  return at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
}

/// Makes `node` the origin of `outputs`, which must be fresh tensors.
inline void attach(const c10::intrusive_ptr<Derivative>& node, const Derivative::Tensors& inputs,
                   const Derivative::Tensors& outputs) {
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

}  // namespace trellis::trainer
