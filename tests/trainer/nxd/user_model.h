#pragma once

// A user's model for the tests: ordinary modules, some with parallel layers, some without.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "runtime/ranks/world.h"
#include "trainer/nxd/nxd.h"

namespace trellis::trainer::testing_support {

constexpr std::int64_t kVocabulary = 16, kHidden = 8, kSequence = 4, kGlobalBatch = 8;

struct Embedding : torch::nn::Module {
  Embedding(const ModuleContext& context, const std::string& name)
      : table(context, name, kVocabulary, kHidden, 0.5) {}
  at::Tensor forward(const at::Tensor& ids) { return table.forward(ids); }
  ParallelEmbedding table;
};

struct Block : torch::nn::Module {
  Block(const ModuleContext& context, const std::string& name)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))),
        up(context, name + ".up", kHidden, {{"", 2 * kHidden}}, {.gather_output = false}),
        down(context, name + ".down", 2 * kHidden, kHidden, {.input_is_parallel = true}) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + down.forward(at::gelu(up.forward(norm(x))[0]));
  }
  torch::nn::LayerNorm norm;
  ColumnParallelLinear up;
  RowParallelLinear down;
};

/// Without a parallel layer and without a context; reads the micro-batch.
struct Plain : torch::nn::Module {
  explicit Plain(double scale)
      : linear(register_module("linear", torch::nn::Linear(kHidden, kHidden))),
        scale_(register_buffer("scale", at::full({1}, scale))) {}
  at::Tensor forward(const at::Tensor& x, const MicroBatch&) { return x + linear(x) * scale_; }
  torch::nn::Linear linear;
  at::Tensor scale_;
};

struct Head : torch::nn::Module {
  Head(const ModuleContext& context, const std::string& name)
      : vocabulary(context, name, kHidden, {{"", kVocabulary}},
                   {.bias = false, .gather_output = false}) {}
  at::Tensor forward(const at::Tensor& x) { return vocabulary.forward(x)[0]; }
  ColumnParallelLinear vocabulary;
};

inline SequentialModel user_model(const ModuleContext& context, bool tied = false) {
  SequentialModel model;
  model.add<Embedding>("embed")
      .add<Block>("block.0")
      .add<Block>("block.1")
      .add<Plain>("plain", 0.5)
      .add<Block>("block.2")
      .add<Block>("block.3");
  model.add<Head>("head").loss(
      [tp = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
        return parallel_cross_entropy(logits, batch.labels.t(), tp).mean();
      });
  if (tied) model.tie({"embed.weight", "head.weight"});
  return model;
}

/// Rows of step `step` that belong to a data-parallel rank.
inline MicroBatch user_batch(std::int64_t step, int dp, int dp_rank) {
  const at::Tensor ids =
      (at::arange(kGlobalBatch * kSequence).view({kGlobalBatch, kSequence}) * 7 + step * 5)
          .remainder(kVocabulary);
  const std::int64_t rows = kGlobalBatch / dp;
  MicroBatch batch;
  batch.input_ids = ids.narrow(0, dp_rank * rows, rows);
  batch.labels = (batch.input_ids * 5 + 3).remainder(kVocabulary);
  for (std::int64_t row = 0; row < rows; ++row) batch.places.push_back(dp_rank * rows + row);
  return batch;
}

}  // namespace trellis::trainer::testing_support
