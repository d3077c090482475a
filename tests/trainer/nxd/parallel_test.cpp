// A user's model with context and expert parallelism and copies of key/value heads: losses,
// gradient norms and checkpoints against one rank, in fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_training.h"
#include "trainer/models/llama/modeling_llama.h"
#include "trainer/modules/moe/moe_layer.h"
#include "trainer/modules/moe/router_record.h"
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/parallel_layers/qkv_linear.h"
#include "trainer/parallel_layers/ring_attention.h"

namespace trellis::trainer::parallel_test {
namespace {

using testing::HasSubstr;
using namespace testing_support;

/// Causal, four query heads over two key/value heads; over a ring where the sequence is cut.
struct Attention : torch::nn::Module {
  Attention(const ModuleContext& context, const std::string& name)
      : qkv(context, name + ".qkv", {kHidden, 4, 2, 4}, {.gather_output = false}),
        out(context, name + ".out", 16, kHidden,
            {.input_is_parallel = true, .partition = qkv.query_columns()}) {
    const SequenceShard part = context.sequence(kSequence);
    if (part.size > 1)
      ring = std::make_shared<const Ring>(Ring{context.parallel->get_context_model_parallel_group(),
                                               plan_ring(part, std::nullopt)});
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [query, key, value] = qkv.forward(x);  // [s, b, heads, d]
    const at::Tensor attended =
        ring ? ring_attention(query, key, value, std::vector<at::Tensor>(ring->plan.steps.size()),
                              ring)
             : whole(query, key, value);
    return x + out.forward(attended.flatten(2));
  }
  static at::Tensor whole(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    const std::int64_t shared = query.size(2) / key.size(2), length = query.size(0);
    const auto heads = [&](const at::Tensor& part) {
      return part.repeat_interleave(shared, 2).permute({1, 2, 0, 3});
    };
    const at::Tensor scores = at::matmul(query.permute({1, 2, 0, 3}), heads(key).transpose(2, 3)) /
                              std::sqrt(static_cast<double>(query.size(3)));
    const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
    return at::matmul(scores.masked_fill(future, -INFINITY).softmax(-1), heads(value))
        .permute({2, 0, 1, 3});
  }
  GQAQKVColumnParallelLinear qkv;
  RowParallelLinear out;
  std::shared_ptr<const Ring> ring;
};

ModelSection mixture() {
  ModelSection model;
  model.hidden_size = kHidden;
  model.ffn_hidden_size = 16;
  model.num_layers = 1;
  model.init_method_std = 0.5;
  model.activation = Activation::kSwiglu;
  model.moe = MoeSection{.num_experts = 4, .top_k = 2, .dropless = true};
  return model;
}

struct Mixture : torch::nn::Module {
  Mixture(const ModuleContext& context, const std::string& name)
      : experts(context, name, mixture(), LlamaForCausalLM::names(), 0) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + experts.forward(x, std::make_shared<RouterRecord>());
  }
  MoeLayer experts;
};

SequentialModel mixed_model(const ModuleContext& context) {
  return SequentialModel()
      .add<Embedding>("embed")
      .add<Attention>("attention")
      .add<Mixture>("mixture")
      .add<Block>("block")
      .add<Head>("head")
      .loss([tp = context.tp()](const at::Tensor& logits, const MicroBatch& batch) {
        return parallel_cross_entropy(logits, batch.labels.t(), tp).mean();
      });
}

struct Cut {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1, kv = 1;
  bool sequence_parallel = false, zero1 = true;
  ReplicaOrder order = ReplicaOrder::kAdjacent;
};

NxDConfig config_of(const Cut& cut) {
  NxDConfig config;
  config.tensor_parallel_size = cut.tp;
  config.pipeline_parallel_size = cut.pp;
  config.context_parallel_size = cut.cp;
  config.expert_parallel_size = cut.ep;
  config.kv_size_multiplier = cut.kv;
  config.kv_replica_order = cut.order;
  config.sequence_parallel = cut.sequence_parallel;
  config.optimizer_config = {
      .zero_one_enabled = cut.zero1, .grad_clipping = true, .max_grad_norm = 0.5};
  config.dtype = at::kDouble;
  config.pipeline_config =
      PipelineConfig{.num_microbatches = static_cast<int>(kGlobalBatch) / cut.dp,
                     .pipeline_cuts = cut.pp > 1 ? std::vector<std::string>{"attention"}
                                                 : std::vector<std::string>{},
                     .auto_partition = cut.pp == 1,
                     .broadcast_and_average_loss = true};
  return neuronx_distributed_config(config);
}

enum class With { kNxDOptimizer, kTorchSgd };

/// `body` after each step, on every rank.
using AfterStep = std::function<void(runtime::RankContext&, NxDModel&, NxDOptimizer*, int step)>;

std::vector<double> numbers(const Cut& cut, With with, const AfterStep& after = {}) {
  const NxDConfig config = config_of(cut);
  runtime::WorldOptions world;
  world.world_size = cut.tp * cut.pp * cut.dp * cut.cp;
  std::vector<double> numbers;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, mixed_model);
    std::unique_ptr<NxDOptimizer> optimizer;
    std::unique_ptr<torch::optim::SGD> sgd;
    if (with == With::kNxDOptimizer)
      optimizer = initialize_parallel_optimizer(config, *model, {.name = "adamw", .lr = 1e-2});
    else
      sgd = std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      if (sgd) sgd->zero_grad();
      const double loss =
          model->run_train(user_batch(step, cut.dp, model->parallel().get_data_parallel_rank()))
              .item<double>();
      double norm = 0;
      if (optimizer) {
        optimizer->step();
        norm = *optimizer->grad_norm();
      } else {
        norm = clip_grad_norm(model->parameter_list(), model->parallel(), 0.5).item<double>();
        sgd->step();
      }
      if (after) after(rank, *model, optimizer.get(), step);
      if (rank.rank() == 0) numbers.insert(numbers.end(), {loss, norm});
    }
  });
  return numbers;
}

class MixedModel : public testing::TestWithParam<Cut> {};

TEST_P(MixedModel, EqualsOneRank) {
  for (const With with : {With::kNxDOptimizer, With::kTorchSgd}) {
    const std::vector<double> got = numbers(GetParam(), with), expected = numbers({}, with);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-10) << i;
  }
}

std::string name_of(const testing::TestParamInfo<Cut>& test) {
  const Cut& c = test.param;
  return "TP" + std::to_string(c.tp) + "PP" + std::to_string(c.pp) + "DP" + std::to_string(c.dp) +
         "CP" + std::to_string(c.cp) + "EP" + std::to_string(c.ep) + "KV" + std::to_string(c.kv) +
         (c.zero1 ? "" : "_whole") + (c.order == ReplicaOrder::kInterleaved ? "_interleaved" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, MixedModel,
    testing::Values(Cut{.cp = 2}, Cut{.dp = 2, .ep = 2}, Cut{.cp = 2, .ep = 2, .zero1 = false},
                    Cut{.tp = 4, .kv = 2},
                    Cut{.tp = 4, .kv = 2, .order = ReplicaOrder::kInterleaved},
                    Cut{.tp = 2, .pp = 2, .dp = 2, .ep = 2, .sequence_parallel = true},
                    Cut{.dp = 2, .cp = 2, .ep = 4}),
    name_of);

TEST(MixedModelCheckpoints, MoveToOneRank) {
  const TemporaryDirectory folder;
  const Cut cut{.tp = 4, .dp = 2, .cp = 1, .ep = 2, .kv = 2};
  NxDCheckpoints saved(folder.path().string(), 8);
  const std::vector<double> whole =
      numbers(cut, With::kNxDOptimizer,
              [&](runtime::RankContext& rank, NxDModel& model, NxDOptimizer* optimizer, int step) {
                if (step == 1)
                  saved.save_checkpoint(rank, {.model = &model, .optimizer = optimizer});
              });
  for (const Cut& other : {Cut{}, Cut{.cp = 2, .ep = 2}}) {
    NxDCheckpoints loaded(folder.path().string(), other.cp);
    const std::vector<double> again = numbers(
        other, With::kNxDOptimizer,
        [&](runtime::RankContext& rank, NxDModel& model, NxDOptimizer* optimizer, int step) {
          if (step == 1) loaded.load_checkpoint(rank, {.model = &model, .optimizer = optimizer});
        });
    for (std::size_t i = 4; i < whole.size(); ++i) EXPECT_NEAR(again[i], whole[i], 1e-10) << i;
  }
}

TEST(MixedModelMisuse, IsNamed) {
  EXPECT_THAT(error_of([] { (void)numbers({.dp = 3, .cp = 1, .ep = 2}, With::kTorchSgd); }),
              HasSubstr("expert_model_parallel_size"));
  const NxDConfig config = config_of({.cp = 2});
  runtime::WorldOptions world;
  world.world_size = 2;
  EXPECT_THAT(error_of([&] {
                runtime::run_ranks(world, [&](runtime::RankContext& rank) {
                  const auto model = initialize_parallel_model(config, rank, mixed_model);
                  MicroBatch batch = user_batch(0, 1, 0);
                  batch.input_ids = batch.input_ids.narrow(1, 0, 3);
                  batch.labels = batch.labels.narrow(1, 0, 3);
                  (void)model->run_train(batch);
                });
              }),
              HasSubstr("context_parallel_size cuts the sequence: expected a multiple of 2"));
}

}  // namespace
}  // namespace trellis::trainer::parallel_test
