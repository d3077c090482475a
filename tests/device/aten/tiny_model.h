#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

/// A transformer layer with embedding, two kinds of norm, fused attention, gated MLP, loss and
/// AdamW, small enough to train in a test.
namespace trellis::device::testing {

struct TinyModel {
  static constexpr std::int64_t kVocabulary = 17, kWidth = 16, kHeads = 2, kHidden = 24;
  std::vector<at::Tensor> parameters;

  TinyModel(at::Device device, at::ScalarType type) {
    at::Generator generator = at::detail::createCPUGenerator(1);
    for (const at::DimVector& size : std::vector<at::DimVector>{{kVocabulary, kWidth},
                                                                {kWidth},
                                                                {3 * kWidth, kWidth},
                                                                {kWidth, kWidth},
                                                                {kWidth},
                                                                {kWidth},
                                                                {2 * kHidden, kWidth},
                                                                {kWidth, kHidden},
                                                                {kVocabulary, kWidth}}) {
      const at::Tensor value =
          size.size() == 1 ? at::ones(size)
                           : at::randn(size, generator, at::TensorOptions(at::kFloat)) * 0.2;
      parameters.push_back(value.to(type).to(device).requires_grad_());
    }
  }

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels) const {
    const auto& p = parameters;
    at::Tensor x = at::embedding(p[0], tokens);
    const auto batch = tokens.size(0), length = tokens.size(1);
    const auto heads = [&](const at::Tensor& t) {
      return t.view({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto qkv = at::linear(at::layer_norm(x, {kWidth}, p[1], p[5]), p[2]).chunk(3, -1);
    const at::Tensor context = at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]),
                                                                heads(qkv[2]), {}, 0.0, true);
    x = x + at::linear(context.transpose(1, 2).reshape({batch, length, kWidth}), p[3]);
    const auto gate = at::linear(at::layer_norm(x, {kWidth}, p[4], p[5]), p[6]).chunk(2, -1);
    x = x + at::linear(at::silu(gate[0]) * gate[1], p[7]);
    // Where a residual joins, the fused RMS norm adds its gradients in another order than the CPU's
    // decomposition: not bit for bit.
    const at::Tensor logits = at::linear(at::rms_norm(x, {kWidth}, p[1], 1e-5), p[8])
                                  .view({-1, kVocabulary})
                                  .to(at::kFloat);
    return at::cross_entropy_loss(logits, labels.view({-1}));
  }
};

/// Trains for `steps` and returns the losses and the parameters.
inline std::vector<at::Tensor> train(at::Device device, at::ScalarType type, int steps) {
  TinyModel model(device, type);
  at::Generator generator = at::detail::createCPUGenerator(2);
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs, counts, result;
  for (const at::Tensor& p : model.parameters) {
    exp_avgs.push_back(at::zeros_like(p.detach()));
    exp_avg_sqs.push_back(at::zeros_like(p.detach()));
    counts.push_back(at::zeros({}, at::TensorOptions(at::kFloat).device(device)));
  }
  for (int step = 0; step < steps; ++step) {
    const at::Tensor data =
        at::randint(0, TinyModel::kVocabulary, {2, 9}, generator, at::TensorOptions(at::kLong))
            .to(device);
    const at::Tensor loss = model.loss(data.slice(1, 0, 8), data.slice(1, 1, 9).contiguous());
    std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, model.parameters);
    result.push_back(loss.detach());
    const at::NoGradGuard no_grad;
    at::_foreach_add_(counts, 1);
    std::vector<at::Tensor> values;
    for (const at::Tensor& p : model.parameters) values.push_back(p.detach());
    at::_fused_adamw_(values, gradients, exp_avgs, exp_avg_sqs, {}, counts, 1e-2, 0.9, 0.95, 0.1,
                      1e-8, false, false);
  }
  for (const at::Tensor& p : model.parameters) result.push_back(p.detach());
  return result;
}

}  // namespace trellis::device::testing
