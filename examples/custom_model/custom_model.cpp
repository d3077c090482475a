// A custom model, trained over TP 2 × PP 2 without a YAML file. docs/guides/model.md explains
// each line.
#include <cstdio>

#include <ATen/ATen.h>
#include <torch/nn/modules/normalization.h>

#include "runtime/ranks/world.h"
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/nxd/nxd.h"

using namespace trellis::trainer;
constexpr std::int64_t kVocabulary = 64, kHidden = 32, kSequence = 16, kBatch = 8, kSteps = 60;

struct Embedding : torch::nn::Module {
  Embedding(const ModuleContext& context, const std::string& name)
      : table(context, name, kVocabulary, kHidden, 0.5) {}
  at::Tensor forward(const at::Tensor& ids) { return table.forward(ids); }  // [b, s] → [s, b, h]
  ParallelEmbedding table;
};

struct Block
    : torch::nn::Module {  // an ordinary module: LibTorch's LayerNorm between two parallel layers
  Block(const ModuleContext& context, const std::string& name)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))),
        up(context, name + ".up", kHidden, {{"", 4 * kHidden}}, {.gather_output = false}),
        down(context, name + ".down", 4 * kHidden, kHidden, {.input_is_parallel = true}) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + down.forward(at::gelu(up.forward(norm(x))[0]));
  }
  torch::nn::LayerNorm norm;
  ColumnParallelLinear up;
  RowParallelLinear down;
};

struct Head : torch::nn::Module {
  Head(const ModuleContext& c, const std::string& name)
      : vocabulary(c, name, kHidden, {{"", kVocabulary}}, {.gather_output = false}) {}
  at::Tensor forward(const at::Tensor& x) { return vocabulary.forward(x)[0]; }
  ColumnParallelLinear vocabulary;
};

int main() {
  const NxDConfig config = neuronx_distributed_config(
      {.tensor_parallel_size = 2,
       .pipeline_parallel_size = 2,
       .pipeline_config = PipelineConfig{.num_microbatches = 4,
                                         .transformer_layer_cls = "Block",
                                         .auto_partition = true,
                                         .broadcast_and_average_loss = true},
       .optimizer_config = {
           .zero_one_enabled = true, .grad_clipping = true, .max_grad_norm = 1.0}});
  const trellis::runtime::WorldOptions world{.world_size = 4};
  double first = 0, last = 0;
  trellis::runtime::run_ranks(world, [&](trellis::runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, [](const ModuleContext& context) {
      return SequentialModel()
          .add<Embedding>("embed")
          .add<Block>("block.0")
          .add<Block>("block.1")
          .add<Head>("head")
          .loss([tp = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
            return parallel_cross_entropy(logits, batch.labels.t(), tp).mean();
          });
    });
    const auto optimizer =
        initialize_parallel_optimizer(config, *model, {.name = "adamw", .lr = 3e-3});
    for (int step = 0; step < kSteps;
         ++step) {  // the next token is a function of the token: 5·t + 3
      const at::Tensor ids =
          (at::arange(kBatch * kSequence).view({kBatch, kSequence}) * 7 + step * 11)
              .remainder(kVocabulary);
      const double loss =
          model->run_train({.input_ids = ids, .labels = (ids * 5 + 3).remainder(kVocabulary)})
              .item<double>();
      optimizer->step();
      if (rank.rank() == 0) (step == 0 ? first : last) = loss;
    }
  });
  std::printf("loss %.3f in step 1, %.3f in step %d\n", first, last, static_cast<int>(kSteps));
  return last < 0.5 * first ? 0 : 1;
}
