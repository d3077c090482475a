#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "device/aten/shapes/shape_tables.h"

namespace trellis::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool defined(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// ── embedding ──

Tensor embedding(const Tensor& weight, const Tensor& indices, c10::SymInt, bool, bool) {
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor&, c10::SymInt num_weights,
                                c10::SymInt, bool) {
  return at::empty({num_weights.expect_int(), grad.size(-1)}, grad.options());
}

// ── norms ──

/// Statistics are kept in the type of the parameters when a half-precision input meets fp32
/// parameters.
c10::ScalarType statistics_type(const Tensor& input, const OptionalTensor& weight,
                                const OptionalTensor& bias) {
  const auto widened = [&](const OptionalTensor& parameter) {
    return defined(parameter) && parameter->scalar_type() == c10::kFloat;
  };
  return at::isReducedFloatingType(input.scalar_type()) && (widened(weight) || widened(bias))
             ? c10::kFloat
             : input.scalar_type();
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input,
                                              c10::SymIntArrayRef normalized_shape,
                                              const OptionalTensor& weight,
                                              const OptionalTensor& bias, double) {
  at::DimVector statistics(input.sizes());
  for (std::size_t i = statistics.size() - normalized_shape.size(); i < statistics.size(); ++i)
    statistics[i] = 1;
  const auto options = input.options().dtype(statistics_type(input, weight, bias));
  return {at::empty_like(input, at::MemoryFormat::Contiguous), at::empty(statistics, options),
          at::empty(statistics, options)};
}

Tensor gradient_if(bool wanted, const Tensor& like) {
  return wanted && like.defined() ? at::empty_like(like, at::MemoryFormat::Contiguous) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor&, const Tensor& input,
                                                       c10::SymIntArrayRef, const Tensor&,
                                                       const Tensor&, const OptionalTensor& weight,
                                                       const OptionalTensor& bias,
                                                       std::array<bool, 3> mask) {
  return {gradient_if(mask[0], input), gradient_if(mask[1], weight.value_or(Tensor())),
          gradient_if(mask[2], bias.value_or(Tensor()))};
}

std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor& input, const OptionalTensor& weight,
                                              const OptionalTensor& bias, c10::SymInt n,
                                              c10::SymInt, c10::SymInt, std::int64_t groups,
                                              double) {
  const auto options = input.options().dtype(statistics_type(input, weight, bias));
  return {at::empty_like(input, at::MemoryFormat::Contiguous),
          at::empty({n.expect_int(), groups}, options),
          at::empty({n.expect_int(), groups}, options)};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward(const Tensor&, const Tensor& input,
                                                       const Tensor&, const Tensor&,
                                                       const OptionalTensor& weight, c10::SymInt,
                                                       c10::SymInt, c10::SymInt, std::int64_t,
                                                       std::array<bool, 3> mask) {
  const Tensor w = weight.value_or(Tensor());
  return {gradient_if(mask[0], input), gradient_if(mask[1], w), gradient_if(mask[2], w)};
}

/// Batch norm keeps statistics per channel while it trains, and none afterwards.
struct BatchNorm {
  Tensor output, mean, inverse;
};

BatchNorm batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     bool training) {
  const bool contiguous = input.is_contiguous() && (!defined(weight) || weight->is_contiguous()) &&
                          (!defined(bias) || bias->is_contiguous());
  const auto format = contiguous ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
  const auto options = input.options().dtype(statistics_type(input, weight, bias));
  const std::int64_t kept = training ? input.size(1) : 0;
  return {at::empty_like(input, format), at::empty({kept}, options), at::empty({kept}, options)};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& input,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias,
                                                     const OptionalTensor&, const OptionalTensor&,
                                                     bool training, double, double) {
  const BatchNorm made = batch_norm(input, weight, bias, training);
  return {made.output, made.mean, made.inverse};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_legit(const Tensor& input,
                                                    const OptionalTensor& weight,
                                                    const OptionalTensor& bias, Tensor&, Tensor&,
                                                    bool training, double, double) {
  const BatchNorm made = batch_norm(input, weight, bias, training);
  return {made.output, made.mean, made.inverse};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_no_stats(const Tensor& input,
                                                       const OptionalTensor& weight,
                                                       const OptionalTensor& bias, bool training,
                                                       double, double) {
  const BatchNorm made = batch_norm(input, weight, bias, training);
  return {made.output, made.mean, made.inverse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_with_update(const Tensor& input,
                                                                  const OptionalTensor& weight,
                                                                  const OptionalTensor& bias,
                                                                  Tensor&, Tensor&, double,
                                                                  double) {
  const BatchNorm made = batch_norm(input, weight, bias, true);
  return {made.output, made.mean, made.inverse, at::empty({0}, input.options().dtype(c10::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_gradients(const Tensor& input, const Tensor& weight,
                                                        std::array<bool, 3> mask) {
  const auto type = weight.defined() ? weight.scalar_type() : input.scalar_type();
  const auto parameter = [&](bool wanted) {
    return wanted ? at::empty({input.size(1)}, input.options().dtype(type)) : Tensor();
  };
  const auto format =
      input.is_contiguous() ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
  return {mask[0] ? at::empty_like(input, format) : Tensor(), parameter(mask[1]),
          parameter(mask[2])};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward(
    const Tensor&, const Tensor& input, const OptionalTensor& weight, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, double,
    std::array<bool, 3> mask) {
  return batch_norm_gradients(input, weight.value_or(Tensor()), mask);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor&, const Tensor& input,
                                                       const Tensor& weight, const OptionalTensor&,
                                                       const OptionalTensor&, const OptionalTensor&,
                                                       const OptionalTensor&, bool, double,
                                                       std::array<bool, 3> mask, const Tensor&) {
  return batch_norm_gradients(input, weight, mask);
}

// ── softmax with its own rules for hidden rows ──

Tensor safe_softmax(const Tensor& self, std::int64_t, std::optional<c10::ScalarType> type) {
  return at::empty(self.sizes(), self.options().dtype(type.value_or(self.scalar_type())));
}
Tensor masked_softmax(const Tensor& self, const Tensor&, std::optional<std::int64_t>,
                      std::optional<std::int64_t>) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}
Tensor masked_softmax_backward(const Tensor& grad, const Tensor&, const Tensor&,
                               std::optional<std::int64_t>) {
  return at::empty_like(grad, at::MemoryFormat::Contiguous);
}

// ── attention: the output has the query's layout; statistics and gradients lie as [batch, length,
//    heads, …]

Tensor heads_last(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

using FusedAttention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FusedAttention attention(const Tensor& query, const Tensor& key, const Tensor&,
                         const OptionalTensor&, double, bool, bool, std::optional<double>) {
  const auto statistics = query.options().dtype(at::toOpMathType(query.scalar_type()));
  const Tensor logsumexp =
      at::empty({query.size(0), query.size(2), query.size(1)}, statistics).transpose(1, 2);
  return {at::empty_like(query), logsumexp, Tensor(), Tensor(), query.size(2),
          key.size(2),           Tensor(),  Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor&, std::array<bool, 4>, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double, bool, const Tensor&, const Tensor&, std::optional<double>) {
  if (!grad_out.defined()) return {};
  const bool grouped = key.size(1) != query.size(1);  // summed over the group: contiguous
  const auto like = [&](const Tensor& tensor) {
    return grouped && !tensor.is_same(query) ? at::empty(tensor.sizes(), tensor.options())
                                             : heads_last(tensor);
  };
  return {like(query), like(key), like(value), Tensor()};
}

// ── convolution, products ──

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor&,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, std::int64_t groups) {
  const auto spatial = static_cast<std::size_t>(input.dim() - 2);
  const auto each = [&](at::IntArrayRef given) {
    return given.size() == 1 ? at::DimVector(spatial, given[0]) : at::DimVector(given);
  };
  const auto sizes =
      transposed
          ? at::native::conv_input_size(input.sizes(), weight.sizes(), each(padding),
                                        each(output_padding), each(stride), each(dilation), groups)
          : at::native::conv_output_size(input.sizes(), weight.sizes(), each(padding), each(stride),
                                         each(dilation));
  return at::empty(sizes, input.options());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight,
                                                        at::OptionalIntArrayRef bias_sizes,
                                                        at::IntArrayRef, at::IntArrayRef,
                                                        at::IntArrayRef, bool, at::IntArrayRef,
                                                        std::int64_t, std::array<bool, 3> mask) {
  const Tensor bias =
      mask[2] && bias_sizes.has_value() ? at::empty(*bias_sizes, grad.options()) : Tensor();
  return {gradient_if(mask[0], input), gradient_if(mask[1], weight), bias};
}

/// Rows of a 2-D operand belong to groups; a 3-D operand has one matrix per group.
Tensor grouped_mm(const Tensor& self, const Tensor& mat2, const OptionalTensor& offsets,
                  const OptionalTensor&, std::optional<c10::ScalarType> type) {
  const auto options = self.options().dtype(type.value_or(self.scalar_type()));
  if (self.dim() == 2 && mat2.dim() == 2)
    return at::empty({offsets->size(0), self.size(0), mat2.size(1)}, options);
  if (self.dim() == 2) return at::empty({self.size(0), mat2.size(2)}, options);
  if (mat2.dim() == 2) return at::empty({self.size(1), mat2.size(1)}, options);
  return at::empty({self.size(0), self.size(1), mat2.size(2)}, options);
}

Tensor scaled_mm(const Tensor& self, const Tensor& mat2, const Tensor&, const Tensor&,
                 const OptionalTensor&, const OptionalTensor&, std::optional<c10::ScalarType> type,
                 bool) {
  return at::empty({self.size(0), mat2.size(1)},
                   self.options().dtype(type.value_or(self.scalar_type())));
}

Tensor int_mm(const Tensor& self, const Tensor& mat2) {
  return at::empty({self.size(0), mat2.size(1)}, self.options().dtype(c10::kInt));
}

Tensor addbmm(const Tensor&, const Tensor& batch1, const Tensor& batch2, const at::Scalar&,
              const at::Scalar&) {
  return at::empty({batch1.size(1), batch2.size(2)}, batch1.options());
}

}  // namespace

void add_network_shapes(ShapeTable& table) {
  table.add("aten::embedding", &embedding);
  table.add("aten::embedding_dense_backward", &embedding_dense_backward);
  table.add("aten::native_layer_norm", &layer_norm);
  table.add("aten::native_layer_norm_backward", &layer_norm_backward);
  table.add("aten::native_group_norm", &group_norm);
  table.add("aten::native_group_norm_backward", &group_norm_backward);
  table.add("aten::native_batch_norm", &native_batch_norm);
  table.add("aten::_native_batch_norm_legit", &batch_norm_legit);
  table.add("aten::_native_batch_norm_legit.no_stats", &batch_norm_no_stats);
  table.add("aten::_batch_norm_with_update", &batch_norm_with_update);
  table.add("aten::native_batch_norm_backward", &native_batch_norm_backward);
  table.add("aten::batch_norm_backward", &batch_norm_backward);
  table.add("aten::_safe_softmax", &safe_softmax);
  table.add("aten::_masked_softmax", &masked_softmax);
  table.add("aten::_masked_softmax_backward", &masked_softmax_backward);
  table.add("aten::_scaled_dot_product_fused_attention_overrideable", &attention);
  table.add("aten::_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  table.add("aten::convolution", &convolution);
  table.add("aten::convolution_backward", &convolution_backward);
  table.add("aten::_grouped_mm", &grouped_mm);
  table.add("aten::_scaled_mm", &scaled_mm);
  table.add("aten::_int_mm", &int_mm);
  table.add("aten::addbmm", &addbmm);
  for (const char* op :
       {"aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr", "aten::_fused_adam_",
        "aten::_fused_adam_.tensor_lr", "aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr",
        "aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr",
        "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_assert_async",
        "aten::_assert_async.msg"}) {
    table.add_no_result(op);
  }
}

}  // namespace trellis::device
