#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub.h>

#include "device/aten/shape_tables.h"

/// Operators that the CPU runs through a TensorIterator: the iterator itself answers sizes and strides.
namespace trellis::device {
namespace {

using at::Tensor;

Tensor& unary_out(const Tensor& self, Tensor& out) {
  at::TensorIterator::unary_op(out, self);
  return out;
}

Tensor& logical_not_out(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  return out;
}

Tensor& comparison_out(const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIterator::comparison_op(out, self, other);
  return out;
}

Tensor& nan_to_num_out(const Tensor& self, std::optional<double>, std::optional<double>, std::optional<double>, Tensor& out) {
  return unary_out(self, out);
}

Tensor& bernoulli_out(const Tensor& self, std::optional<at::Generator>, Tensor& out) { return out.resize_(self.sizes()), out; }

Tensor binary(const Tensor& self, const Tensor& other) {
  Tensor out;
  return at::TensorIterator::binary_op(out, self, other).output();
}

Tensor& binary_out(const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIterator::binary_op(out, self, other);
  return out;
}

Tensor& where_out(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  const auto type = at::native::result_type(self, other);
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_owned_const_input(condition)
      .add_owned_const_input(self.scalar_type() == type ? self : self.to(type))
      .add_owned_const_input(other.scalar_type() == type ? other : other.to(type))
      .build();
  return out;
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  Tensor out = at::empty({0}, self.options().dtype(at::native::result_type(self, other)));
  return where_out(condition, self, other, out);
}

Tensor relu(const Tensor& self) { return at::clamp_min(self, 0); }
Tensor isnan(const Tensor& self) { return at::ne(self, self); }
Tensor rsub(const Tensor& self, const Tensor& other, const at::Scalar& alpha) { return at::sub(other, self, alpha); }

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  return {at::empty_like(self, at::MemoryFormat::Contiguous), at::empty_like(self, at::MemoryFormat::Contiguous)};
}

Tensor loss_shape(const Tensor& elementwise, std::int64_t reduction) {
  return reduction == 0 ? elementwise : at::empty({}, elementwise.options());
}

Tensor huber_loss(const Tensor& self, const Tensor& target, std::int64_t reduction, double) {
  return loss_shape(binary(self, target), reduction);
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor&, const std::optional<Tensor>&, std::int64_t reduction) {
  return loss_shape(at::empty_like(self), reduction);
}

Tensor mse_loss_backward(const Tensor&, const Tensor& self, const Tensor&, std::int64_t) { return at::empty_like(self); }

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double) { return at::mul(grad, mask); }

}  // namespace

void add_elementwise_shapes(ShapeTable& table) {
  table.add("aten::abs.out", &unary_out);
  table.add("aten::angle.out", &unary_out);
  table.add("aten::nan_to_num.out", &nan_to_num_out);
  table.add("aten::logical_not.out", &logical_not_out);
  table.add("aten::logical_and.out", &comparison_out);
  table.add("aten::logical_or.out", &comparison_out);
  table.add("aten::logical_xor.out", &comparison_out);
  table.add("aten::bernoulli.out", &bernoulli_out);
  table.add("aten::floor_divide", &binary);
  table.add("aten::floor_divide.out", &binary_out);
  table.add("aten::where.self", &where);
  table.add("aten::where.self_out", &where_out);
  table.add("aten::relu", &relu);
  table.add("aten::isnan", &isnan);
  table.add("aten::rsub.Tensor", &rsub);
  table.add("aten::log_sigmoid_forward", &log_sigmoid_forward);
  table.add("aten::huber_loss", &huber_loss);
  table.add("aten::binary_cross_entropy", &binary_cross_entropy);
  table.add("aten::mse_loss_backward", &mse_loss_backward);
  table.add("aten::native_dropout_backward", &dropout_backward);
  for (const char* op : {"aten::hardtanh", "aten::hardswish", "aten::hardtanh_backward", "aten::hardswish_backward",
                         "aten::log_sigmoid_backward", "aten::logit", "aten::mish_backward", "aten::poisson"}) {
    table.add_like_first(op);
  }
}

}  // namespace trellis::device
