#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include "device/aten/shapes/kernel_tables.h"

/// Recurrent cells as one operator each. `gates` are the products of input and hidden state with
/// their weights, [B, 4H] or [B, 3H].
namespace trellis::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const OptionalTensor& gradient, const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient : at::zeros_like(like);
}

Tensor sum_of_rows(const Tensor& gates, bool wanted) { return wanted ? gates.sum(0) : Tensor(); }

Tensor through_sigmoid(const Tensor& gradient, const Tensor& output) {
  return gradient * output * (1 - output);
}
Tensor through_tanh(const Tensor& gradient, const Tensor& output) {
  return gradient * (1 - output * output);
}

/// c' = f·c + i·g, h' = o·tanh(c'); the workspace keeps i, f, g, o after their activations.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  const auto gates =
      (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(),
               o = gates[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor squashed = cy.tanh();
  const Tensor grad_h = or_zeros(grad_hy, cy);
  const Tensor grad_c = through_tanh(grad_h * o, squashed) + or_zeros(grad_cy, cy);
  const Tensor grad_gates =
      at::cat({through_sigmoid(grad_c * g, i), through_sigmoid(grad_c * cx, f),
               through_tanh(grad_c * i, g), through_sigmoid(grad_h * squashed, o)},
              1);
  return {grad_gates, grad_c * f, sum_of_rows(grad_gates, has_bias)};
}

/// r, z = σ(…), n = tanh(in + r·hn), h' = n + z·(h − n); the workspace keeps r, z, n, h, hn.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = (in[0] + hidden[0]).sigmoid(), z = (in[1] + hidden[1]).sigmoid();
  const Tensor n = at::addcmul(in[2], r, hidden[2]).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &r = kept[0], &z = kept[1], &n = kept[2], &hx = kept[3], &hn = kept[4];
  const Tensor grad_n = through_tanh(grad_hy * (1 - z), n);
  const Tensor grad_r = through_sigmoid(grad_n * hn, r),
               grad_z = through_sigmoid(grad_hy * (hx - n), z);
  const Tensor grad_input = at::cat({grad_r, grad_z, grad_n}, 1),
               grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {grad_input, grad_hidden, grad_hy * z, sum_of_rows(grad_input, has_bias),
          sum_of_rows(grad_hidden, has_bias)};
}

}  // namespace

void add_rnn_cells(std::vector<CpuFunction>& functions) {
  using c10::KernelFunction;
  functions.push_back(
      {"aten::_thnn_fused_lstm_cell", KernelFunction::makeFromUnboxedRuntimeFunction(&lstm_cell)});
  functions.push_back({"aten::_thnn_fused_lstm_cell_backward_impl",
                       KernelFunction::makeFromUnboxedRuntimeFunction(&lstm_cell_backward)});
  functions.push_back(
      {"aten::_thnn_fused_gru_cell", KernelFunction::makeFromUnboxedRuntimeFunction(&gru_cell)});
  functions.push_back({"aten::_thnn_fused_gru_cell_backward",
                       KernelFunction::makeFromUnboxedRuntimeFunction(&gru_cell_backward)});
}

}  // namespace trellis::device
