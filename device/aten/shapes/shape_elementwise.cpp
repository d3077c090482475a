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

#include "device/aten/shapes/shape_tables.h"

/// Operators that the CPU runs through a TensorIterator: the iterator itself answers sizes and
/// strides.
namespace trellis::device {
namespace {

using at::Tensor;

Tensor& unary_out(const Tensor& self, Tensor& out) {
  at::TensorIterator::unary_op(out, self);
  return out;
}

Tensor& logical_not_out(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(self)
      .build();
  return out;
}

Tensor& comparison_out(const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIterator::comparison_op(out, self, other);
  return out;
}

Tensor& nan_to_num_out(const Tensor& self, std::optional<double>, std::optional<double>,
                       std::optional<double>, Tensor& out) {
  return unary_out(self, out);
}

/// The result for complex numbers is real.
Tensor& abs_out(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig()
      .add_output(out)
      .add_const_input(self)
      .check_all_same_dtype(false)
      .build();
  return out;
}

std::vector<Tensor> each_abs(at::TensorList tensors) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : tensors)
    results.push_back(
        at::empty_like(tensor, tensor.options().dtype(c10::toRealValueType(tensor.scalar_type()))));
  return results;
}

Tensor& bernoulli_out(const Tensor& self, std::optional<at::Generator>, Tensor& out) {
  return out.resize_(self.sizes()), out;
}

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
Tensor rsub(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  return {at::empty_like(self, at::MemoryFormat::Contiguous),
          at::empty_like(self, at::MemoryFormat::Contiguous)};
}

Tensor angle(const Tensor& self) {
  const bool integral = c10::isIntegralType(self.scalar_type(), true);
  return at::empty_like(self,
                        self.options().dtype(integral ? c10::get_default_dtype_as_scalartype()
                                                      : c10::toRealValueType(self.scalar_type())));
}

Tensor& angle_out(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(self)
      .build();
  return out;
}

std::tuple<Tensor&, Tensor&> frexp_out(const Tensor& self, Tensor& mantissa, Tensor& exponent) {
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .set_check_mem_overlap(true)
      .add_output(mantissa)
      .add_output(exponent)
      .add_const_input(self)
      .build();
  return {mantissa, exponent};
}

std::tuple<Tensor, Tensor> prelu_backward(const Tensor&, const Tensor& self, const Tensor&) {
  return {at::empty_like(self), at::empty_like(self)};
}

Tensor add_relu(const Tensor& self, const Tensor& other, const at::Scalar&) {
  return binary(self, other);
}
Tensor remainder_of_scalar(const at::Scalar&, const Tensor& other) { return at::empty_like(other); }

Tensor rrelu_with_noise(const Tensor& self, Tensor&, const at::Scalar&, const at::Scalar&, bool,
                        std::optional<at::Generator>) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

/// [.., 2n, ..] of the input; the gradient has the input's sizes.
Tensor glu_backward(const Tensor&, const Tensor& self, std::int64_t) {
  return at::empty(self.sizes(), self.options());
}

Tensor weight_norm_first(const Tensor& v) {
  return at::empty_like(v, at::MemoryFormat::Contiguous);
}
std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, std::int64_t) {
  return {
      weight_norm_first(v),
      at::empty_like(
          g, g.options().dtype(g.scalar_type() == c10::kBFloat16 ? c10::kFloat : g.scalar_type()),
          at::MemoryFormat::Contiguous)};
}
std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor&, const Tensor& v, const Tensor& g,
                                                const Tensor&, std::int64_t) {
  return {weight_norm_first(v), weight_norm_first(g)};
}

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double) {
  return at::mul(grad, mask);
}

}  // namespace

void add_elementwise_shapes(ShapeTable& table) {
  table.add("aten::abs.out", &abs_out);
  table.add("aten::_foreach_abs", &each_abs);
  table.add_no_result("aten::_foreach_abs_");
  table.add("aten::angle", &angle);
  table.add("aten::angle.out", &angle_out);
  table.add("aten::conj_physical.out", &unary_out);
  table.add("aten::frexp.Tensor_out", &frexp_out);
  table.add("aten::_prelu_kernel", &binary);
  table.add("aten::_prelu_kernel_backward", &prelu_backward);
  table.add("aten::_add_relu.Tensor", &add_relu);
  table.add("aten::remainder.Scalar_Tensor", &remainder_of_scalar);
  table.add("aten::rrelu_with_noise", &rrelu_with_noise);
  table.add("aten::glu_backward", &glu_backward);
  table.add("aten::_weight_norm_interface", &weight_norm);
  table.add("aten::_weight_norm_interface_backward", &weight_norm_backward);
  table.add("aten::__lshift__.Tensor", &binary);
  table.add("aten::__rshift__.Tensor", &binary);
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
  table.add("aten::native_dropout_backward", &dropout_backward);
  for (const char* op :
       {"aten::hardtanh", "aten::hardswish", "aten::hardtanh_backward", "aten::hardswish_backward",
        "aten::log_sigmoid_backward", "aten::logit", "aten::mish_backward", "aten::poisson",
        "aten::__lshift__.Scalar", "aten::__rshift__.Scalar", "aten::_standard_gamma",
        "aten::_standard_gamma_grad", "aten::_sample_dirichlet", "aten::_dirichlet_grad",
        "aten::binomial"}) {
    table.add_like_first(op);
  }
}

}  // namespace trellis::device
