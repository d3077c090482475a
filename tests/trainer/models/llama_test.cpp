// The model against a straightforward re-implementation with plain ATen operations, in fp64: same loss, same gradients.
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/models/llama/modeling_llama.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {
namespace {

using Weights = std::map<std::string, at::Tensor>;

ModelSection small_model() {
  ModelSection model;
  model.num_layers = 3;
  model.hidden_size = 24;
  model.ffn_hidden_size = 40;
  model.num_attention_heads = 6;
  model.num_kv_heads = 2;
  model.encoder_seq_length = 11;
  model.vocab_size = 37;
  model.init_method_std = 0.2;
  return model;
}

at::Tensor naive_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight;
}

/// One complex multiplication per pair and position.
at::Tensor naive_rotary(const at::Tensor& x, double theta) {  // [b, n, s, d]
  const std::int64_t d = x.size(3), half = d / 2;
  at::Tensor out = at::zeros_like(x);
  const at::Tensor position = at::arange(x.size(2), x.options());
  for (std::int64_t i = 0; i < half; ++i) {
    const at::Tensor angle = position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    const at::Tensor a = x.select(3, i), b = x.select(3, i + half);
    out = out.index_copy(3, at::tensor({i}), (a * angle.cos() - b * angle.sin()).unsqueeze(3));
    out = out.index_copy(3, at::tensor({i + half}), (b * angle.cos() + a * angle.sin()).unsqueeze(3));
  }
  return out;
}

at::Tensor naive_attention(const at::Tensor& x, const Weights& w, const std::string& path, const ModelSection& m) {  // x [b, s, h]
  const std::int64_t b = x.size(0), s = x.size(1), d = m.hidden_size / m.num_attention_heads;
  const auto heads = [&](const std::string& name, std::int64_t n) {
    return x.matmul(w.at(path + "." + name + ".weight").t()).view({b, s, n, d}).transpose(1, 2);
  };
  const at::Tensor q = naive_rotary(heads("q_proj", m.num_attention_heads), m.rope_theta);
  const std::int64_t copies = m.num_attention_heads / m.num_kv_heads;
  const at::Tensor k = naive_rotary(heads("k_proj", m.num_kv_heads), m.rope_theta).repeat_interleave(copies, 1);
  const at::Tensor v = heads("v_proj", m.num_kv_heads).repeat_interleave(copies, 1);
  const at::Tensor future = at::ones({s, s}, at::kBool).triu(1);
  const at::Tensor scores = (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(d))).masked_fill(future, -INFINITY);
  return scores.softmax(-1).matmul(v).transpose(1, 2).reshape({b, s, -1}).matmul(w.at(path + ".o_proj.weight").t());
}

at::Tensor naive_mlp(const at::Tensor& x, const Weights& w, const std::string& path) {
  const auto gate_up = x.matmul(w.at(path + ".gate_up_proj.weight").t()).chunk(2, -1);
  return (gate_up[0] * gate_up[0].sigmoid() * gate_up[1]).matmul(w.at(path + ".down_proj.weight").t());
}

at::Tensor naive_loss(const Weights& w, const ModelSection& m, const at::Tensor& ids, const at::Tensor& labels) {
  const double eps = m.layernorm_epsilon;
  at::Tensor x = w.at("model.embed_tokens.weight").index({ids});
  for (int i = 0; i < m.num_layers; ++i) {
    const std::string path = "model.layers." + std::to_string(i);
    x = x + naive_attention(naive_rms_norm(x, w.at(path + ".input_layernorm.weight"), eps), w, path + ".self_attn", m);
    x = x + naive_mlp(naive_rms_norm(x, w.at(path + ".post_attention_layernorm.weight"), eps), w, path + ".mlp");
  }
  const at::Tensor logits = naive_rms_norm(x, w.at("model.norm.weight"), eps).matmul(w.at("lm_head.weight").t());
  return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

class LlamaOracle : public testing::Test {
 protected:
  LlamaOracle() {
    context.parallel = &parallel;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = context.reduce_dtype = at::kDouble;
    context.seed = 7;
    model.emplace(config, context, LayerRange{0, config.num_layers});
    at::Generator generator = at::detail::createCPUGenerator(3);
    ids = at::randint(0, config.vocab_size, {2, config.encoder_seq_length}, generator, at::kLong);
    labels = at::randint(0, config.vocab_size, {2, config.encoder_seq_length}, generator, at::kLong);
    for (const Parameter& parameter : parameters) {
      // Norm weights start at one, where a wrong use of them would not show.
      const at::NoGradGuard no_grad;
      if (parameter.tensor.dim() == 1) parameter.tensor.normal_(1, 0.3, generator);
      naive[parameter.name] = parameter.tensor.detach().clone().requires_grad_();
    }
  }

  ModelSection config = small_model();
  ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
  std::optional<LlamaForCausalLM> model;
  at::Tensor ids, labels;
  Weights naive;
};

TEST_F(LlamaOracle, LossEqualsTheStraightforwardImplementation) {
  const double expected = naive_loss(naive, config, ids, labels).item<double>();
  EXPECT_NEAR(model->forward(ids, labels).item<double>(), expected, 1e-12 * expected);
}

TEST_F(LlamaOracle, EveryGradientEqualsTheStraightforwardImplementation) {
  naive_loss(naive, config, ids, labels).backward();
  model->forward(ids, labels).backward();
  for (const Parameter& parameter : parameters) {
    EXPECT_LT(relative_error(parameter.tensor.grad(), naive.at(parameter.name).grad()), 1e-12) << parameter.name;
  }
}

TEST_F(LlamaOracle, ParameterNamesAreThoseOfTheModelHub) {
  EXPECT_EQ(parameters.size(), 1u + 8u * 3u + 2u);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.2.self_attn.o_proj.weight", "model.layers.0.mlp.gate_up_proj.weight",
                           "model.layers.1.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"}) {
    EXPECT_EQ(naive.count(name), 1u) << name;
  }
}

}  // namespace
}  // namespace trellis::trainer
