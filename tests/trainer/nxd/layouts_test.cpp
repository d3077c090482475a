// A user's model over layouts: losses, gradient norms and weights against one rank, in fp64.
#include <map>
#include <mutex>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "tests/trainer/nxd/user_model.h"
#include "trainer/nxd/initialize_parallel_model.h"

namespace trellis::trainer::layouts_test {
namespace {

using namespace testing_support;

struct Layout {
  int tp = 1, pp = 1, dp = 1, vpp = 1;
  bool sequence_parallel = false, zero1 = true, tied = false, recompute = false;
};

NxDConfig config_of(const Layout& layout) {
  NxDConfig config;
  config.tensor_parallel_size = layout.tp;
  config.pipeline_parallel_size = layout.pp;
  config.sequence_parallel = layout.sequence_parallel;
  config.optimizer_config = {
      .zero_one_enabled = layout.zero1, .grad_clipping = true, .max_grad_norm = 0.5};
  config.dtype = at::kDouble;
  PipelineConfig pipeline;
  pipeline.num_microbatches = static_cast<int>(kGlobalBatch) / layout.dp;
  pipeline.virtual_pipeline_size = layout.vpp;
  pipeline.transformer_layer_cls = "Block";
  pipeline.auto_partition = true;
  pipeline.broadcast_and_average_loss = true;
  config.pipeline_config = pipeline;
  if (layout.recompute)
    config.activation_checkpoint_config = ActivationCheckpointConfig{.full = true};
  return neuronx_distributed_config(config);
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;  ///< whole
};

/// Gathers a parameter over TP.
at::Tensor whole(const Parameter& parameter, const ParallelGroup& tp) {
  const at::Tensor own = parameter.tensor.detach().contiguous();
  if (!parameter.tensor_model_parallel || tp.size == 1) return own.clone();
  return join_shards(all_gather(own, tp).chunk(tp.size, 0), parameter.partition_dim,
                     parameter.partition_stride);
}

enum class With { kNxDOptimizer, kTorchSgd };

Outcome train(const Layout& layout, With with) {
  const NxDConfig config = config_of(layout);
  Outcome outcome;
  std::mutex mutex;
  runtime::WorldOptions world;
  world.world_size = layout.tp * layout.pp * layout.dp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const auto model = initialize_parallel_model(config, rank, [&](const ModuleContext& context) {
      return user_model(context, layout.tied);
    });
    std::unique_ptr<NxDOptimizer> optimizer;
    std::unique_ptr<torch::optim::SGD> sgd;
    if (with == With::kNxDOptimizer)
      optimizer = initialize_parallel_optimizer(config, *model,
                                                {.name = "adamw", .lr = 1e-2, .weight_decay = 0.1});
    else
      sgd = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                torch::optim::SGDOptions(0.1).momentum(0.9));
    const int dp_rank = model->parallel().get_data_parallel_rank();
    for (int step = 0; step < 5; ++step) {
      if (sgd) sgd->zero_grad();
      const double loss = model->run_train(user_batch(step, layout.dp, dp_rank)).item<double>();
      optimizer ? optimizer->step() : void(sgd->step());
      const double norm = optimizer ? *optimizer->grad_norm() : 0;
      if (rank.rank() != 0) continue;
      outcome.losses.push_back(loss);
      outcome.norms.push_back(norm);
    }
    for (const Parameter& parameter : model->parameter_list()) {
      const at::Tensor value =
          whole(parameter, model->parallel().get_tensor_model_parallel_group());
      const std::lock_guard<std::mutex> lock(mutex);
      const auto [found, inserted] = outcome.weights.emplace(parameter.name, value);
      EXPECT_TRUE(inserted || found->second.equal(value))
          << parameter.name << ": ranks hold different bits";
    }
    if (layout.tied) {  // on every rank that holds a copy: compared through the map below
      for (const auto& [name, tensor] : model->named_parameters())
        EXPECT_TRUE(tensor.defined()) << name;
    }
  });
  if (layout.tied) {
    EXPECT_TRUE(outcome.weights.at("embed.weight").equal(outcome.weights.at("head.weight")))
        << "copies stay bit-equal";
  }
  return outcome;
}

void expect_equal(const Outcome& got, const Outcome& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-12) << i;
    EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-11) << i;
  }
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights)
    EXPECT_LE((got.weights.at(name) - weight).abs().max().item<double>(), 1e-11) << name;
}

class UserModel : public testing::TestWithParam<Layout> {};

TEST_P(UserModel, EqualsOneRank) {
  expect_equal(train(GetParam(), With::kNxDOptimizer),
               train({.tied = GetParam().tied}, With::kNxDOptimizer));
}

TEST_P(UserModel, EqualsOneRankWithLibTorchsOptimizer) {
  expect_equal(train(GetParam(), With::kTorchSgd),
               train({.tied = GetParam().tied}, With::kTorchSgd));
}

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  const Layout& l = info.param;
  return "TP" + std::to_string(l.tp) + "PP" + std::to_string(l.pp) + "VPP" + std::to_string(l.vpp) +
         "DP" + std::to_string(l.dp) + (l.sequence_parallel ? "_SP" : "") +
         (l.zero1 ? "_ZeRO1" : "") + (l.tied ? "_tied" : "") + (l.recompute ? "_recompute" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, UserModel,
    testing::Values(Layout{.tp = 2}, Layout{.pp = 2}, Layout{.dp = 2},
                    Layout{.dp = 2, .zero1 = false}, Layout{.pp = 4},
                    Layout{.tp = 2, .pp = 2, .dp = 2},
                    Layout{.tp = 2, .pp = 2, .sequence_parallel = true}, Layout{.pp = 2, .vpp = 2},
                    Layout{.tp = 2, .pp = 2, .dp = 2, .vpp = 2, .sequence_parallel = true},
                    Layout{.recompute = true}, Layout{.tp = 2, .pp = 2, .recompute = true},
                    Layout{.vpp = 2, .tied = true}, Layout{.pp = 2, .tied = true},
                    Layout{.pp = 4, .tied = true}, Layout{.pp = 2, .vpp = 2, .tied = true},
                    Layout{.tp = 2, .pp = 2, .dp = 2, .tied = true},
                    Layout{.tp = 2, .pp = 2, .dp = 2, .zero1 = false, .tied = true}),
    name_of);

}  // namespace
}  // namespace trellis::trainer::layouts_test
