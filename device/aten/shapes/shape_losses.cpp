#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

namespace trellis::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The CPU sums into the tensor that held the loss of each element, so the number keeps its memory.
Tensor reduced_in_place(const Tensor& elementwise, std::int64_t reduction) {
  if (reduction != at::Reduction::None) elementwise.resize_(at::IntArrayRef{});
  return elementwise;
}

Tensor broadcast_loss(const Tensor& self, const Tensor& other) {
  Tensor out;
  return at::TensorIterator::borrowing_binary_op(out, self, other).output();
}

Tensor huber_loss(const Tensor& self, const Tensor& target, std::int64_t reduction, double) {
  const Tensor loss = broadcast_loss(self, target)
                          .to(self.scalar_type());  // .mean() or .sum() makes a new tensor here
  return reduction == at::Reduction::None ? loss : at::empty({}, loss.options());
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor&, const OptionalTensor&,
                            std::int64_t reduction) {
  return reduced_in_place(at::empty_like(self), reduction);
}

Tensor binary_cross_entropy_backward(const Tensor&, const Tensor& self, const Tensor&,
                                     const OptionalTensor&, std::int64_t) {
  return at::empty_like(self);
}

Tensor loss_backward(const Tensor&, const Tensor& self, const Tensor&, std::int64_t) {
  return at::empty_like(self);
}

Tensor& pointwise_backward(const Tensor& self, const Tensor& target, Tensor& grad_input) {
  at::TensorIteratorConfig()
      .add_output(grad_input)
      .add_const_input(self)
      .add_const_input(target)
      .build();
  return grad_input;
}
Tensor& mse_loss_backward_out(const Tensor&, const Tensor& self, const Tensor& target, std::int64_t,
                              Tensor& grad_input) {
  return pointwise_backward(self, target, grad_input);
}
Tensor& smooth_l1_loss_backward_out(const Tensor&, const Tensor& self, const Tensor& target,
                                    std::int64_t, double, Tensor& grad_input) {
  return pointwise_backward(self, target, grad_input);
}

std::tuple<Tensor, Tensor> nll_loss2d(const Tensor& self, const Tensor& target,
                                      const OptionalTensor&, std::int64_t reduction, c10::SymInt) {
  const at::IntArrayRef none = {};
  return {at::empty(reduction == at::Reduction::None ? target.sizes() : none, self.options()),
          at::empty({}, self.options())};
}

Tensor nll_loss2d_backward(const Tensor&, const Tensor& self, const Tensor&, const OptionalTensor&,
                           std::int64_t, c10::SymInt, const Tensor&) {
  return at::empty_like(self);
}

/// One loss per row of [rows, classes], or one in all.
Tensor per_row(const Tensor& self, std::int64_t reduction) {
  if (reduction != at::Reduction::None || self.dim() < 2) return at::empty({}, self.options());
  return at::empty({self.size(0)}, self.options());
}

Tensor multi_margin_loss(const Tensor& self, const Tensor& target, const at::Scalar&,
                         const at::Scalar&, const OptionalTensor&, std::int64_t reduction) {
  return reduction == at::Reduction::None && target.dim() > 0
             ? at::empty(target.sizes(), self.options())
             : per_row(self, reduction);
}

Tensor multi_margin_loss_backward(const Tensor&, const Tensor& self, const Tensor&,
                                  const at::Scalar&, const at::Scalar&, const OptionalTensor&,
                                  std::int64_t) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

std::tuple<Tensor, Tensor> multilabel_margin_loss(const Tensor& self, const Tensor& target,
                                                  std::int64_t reduction) {
  return {per_row(self, reduction), at::empty(target.sizes(), self.options())};
}

Tensor multilabel_margin_loss_backward(const Tensor&, const Tensor& self, const Tensor&,
                                       std::int64_t, const Tensor&) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

}  // namespace

void add_loss_shapes(ShapeTable& table) {
  table.add("aten::huber_loss", &huber_loss);
  table.add("aten::binary_cross_entropy", &binary_cross_entropy);
  table.add("aten::binary_cross_entropy_backward", &binary_cross_entropy_backward);
  table.add("aten::mse_loss_backward", &loss_backward);
  table.add("aten::mse_loss_backward.grad_input", &mse_loss_backward_out);
  table.add("aten::smooth_l1_loss_backward.grad_input", &smooth_l1_loss_backward_out);
  table.add("aten::huber_loss_backward.out", &smooth_l1_loss_backward_out);
  table.add("aten::nll_loss2d_forward", &nll_loss2d);
  table.add("aten::nll_loss2d_backward", &nll_loss2d_backward);
  table.add("aten::multi_margin_loss", &multi_margin_loss);
  table.add("aten::multi_margin_loss_backward", &multi_margin_loss_backward);
  table.add("aten::multilabel_margin_loss_forward", &multilabel_margin_loss);
  table.add("aten::multilabel_margin_loss_backward", &multilabel_margin_loss_backward);
}

}  // namespace trellis::device
