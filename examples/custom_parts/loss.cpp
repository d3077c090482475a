// A custom loss: tokens that the model knows well count less. docs/guides/extend.md explains it.
#include <cmath>
#include <cstdio>

#include <ATen/ATen.h>

#include "runtime/ranks/world.h"
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/nxd/nxd.h"

using namespace trellis::trainer;
constexpr std::int64_t kVocabulary = 64, kHidden = 32, kSequence = 16, kBatch = 8, kSteps = 40;

struct Embedding : torch::nn::Module {
  Embedding(const ModuleContext& context, const std::string& name)
      : table(context, name, kVocabulary, kHidden, 0.5) {}
  at::Tensor forward(const at::Tensor& ids) { return table.forward(ids); }  // [b, s] → [s, b, h]
  ParallelEmbedding table;
};

struct Head : torch::nn::Module {
  Head(const ModuleContext& context, const std::string& name)
      : vocabulary(context, name, kHidden, {{"", kVocabulary}}, {.gather_output = false}) {}
  at::Tensor forward(const at::Tensor& x) { return vocabulary.forward(x)[0]; }
  ColumnParallelLinear vocabulary;
};

/// Loss of logits [s, b, v/TP]: the cross entropies are the same on each rank of TP, and so is the
/// loss.
at::Tensor focal_loss(const at::Tensor& logits, const MicroBatch& batch, const ParallelGroup& tp) {
  const at::Tensor entropy = parallel_cross_entropy(logits, batch.labels.t(), tp);
  return ((1 - (-entropy).exp()).square() * entropy).mean();
}

double last_loss(int tp) {
  const NxDConfig config = neuronx_distributed_config({.tensor_parallel_size = tp});
  double last = 0;
  trellis::runtime::run_ranks({.world_size = tp}, [&](trellis::runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, [](const ModuleContext& context) {
      return SequentialModel().add<Embedding>("embed").add<Head>("head").loss(
          [group = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
            return focal_loss(logits, batch, group);
          });
    });
    const auto optimizer = initialize_parallel_optimizer(config, *model, {.lr = 1e-2});
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor ids = at::arange(kBatch * kSequence).view({kBatch, kSequence}) + step * 11;
      const at::Tensor tokens = (ids * 7).remainder(kVocabulary);  // the next one follows from it
      const at::Tensor next = (tokens * 5 + 3).remainder(kVocabulary);
      const at::Tensor loss = model->run_train({.input_ids = tokens, .labels = next});
      optimizer->step();
      if (rank.rank() == 0) last = loss.item<double>();
    }
  });
  return last;
}

int main() {
  const double whole = last_loss(1), cut = last_loss(2);
  std::printf("focal loss after %d steps: %.6f, over TP 2 %.6f\n", int{kSteps}, whole, cut);
  return whole < 0.5 && std::abs(whole - cut) < 1e-5 ? 0 : 1;
}
