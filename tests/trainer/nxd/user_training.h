#pragma once

// A training of the user's model, with checkpoints, for the tests.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/trainer/nxd/user_model.h"
#include "trainer/nxd/checkpoint/nxd_checkpoints.h"
#include "trainer/nxd/initialize_parallel_model.h"

namespace trellis::trainer::testing_support {

struct Layout {
  int tp = 1, pp = 1, dp = 1;
  bool zero1 = true;
  at::ScalarType dtype = at::kDouble;
  bool masters_in_ckpt = true;
  [[nodiscard]] int ranks() const { return tp * pp * dp; }
};

inline NxDConfig config_of(const Layout& layout) {
  NxDConfig config;
  config.tensor_parallel_size = layout.tp;
  config.pipeline_parallel_size = layout.pp;
  config.optimizer_config = {
      .zero_one_enabled = layout.zero1, .grad_clipping = true, .max_grad_norm = 0.5};
  config.dtype = layout.dtype;
  if (layout.zero1)
    config.mixed_precision_config.use_master_weights_in_ckpt = layout.masters_in_ckpt;
  PipelineConfig pipeline;
  pipeline.num_microbatches = static_cast<int>(kGlobalBatch) / layout.dp;
  pipeline.transformer_layer_cls = "Block";
  pipeline.auto_partition = true;
  pipeline.broadcast_and_average_loss = true;
  config.pipeline_config = pipeline;
  return neuronx_distributed_config(config);
}

/// One rank's training.
struct Training {
  Training(const NxDConfig& config, runtime::RankContext& context)
      : rank(context),
        model(initialize_parallel_model(config, rank,
                                        [](const ModuleContext& c) { return user_model(c); })),
        optimizer(initialize_parallel_optimizer(
            config, *model, {.name = "adamw", .lr = 1e-2, .weight_decay = 0.1})) {}
  double step() {
    const int dp = model->parallel().get_data_parallel_size();
    const double loss = model
                            ->run_train(user_batch(optimizer->steps(), dp,
                                                   model->parallel().get_data_parallel_rank()))
                            .item<double>();
    optimizer->step();
    return loss;
  }
  /// Copies, under names that every rank of the layout has.
  [[nodiscard]] checkpoint::native::TensorDict weights() const {
    checkpoint::native::TensorDict copies;
    for (const auto& [name, tensor] : model->state_dict()) copies[name] = tensor.clone();
    return copies;
  }
  void spoil() const {
    for (const auto& [name, tensor] : model->state_dict()) at::Tensor(tensor).fill_(7);
  }

  runtime::RankContext& rank;
  std::unique_ptr<NxDModel> model;
  std::unique_ptr<NxDOptimizer> optimizer;
};

using Body = std::function<void(Training&, NxDCheckpoints&)>;

inline void run(const Layout& layout, const std::filesystem::path& folder, const Body& body) {
  const NxDConfig config = config_of(layout);
  NxDCheckpoints checkpoints(folder.string(), layout.ranks());
  runtime::WorldOptions world;
  world.world_size = layout.ranks();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Training training(config, rank);
    body(training, checkpoints);
  });
}

inline void expect_equal(const checkpoint::native::TensorDict& got,
                         const checkpoint::native::TensorDict& expected) {
  const at::NoGradGuard no_grad;
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(got.at(name).equal(tensor)) << name;
}

inline std::vector<std::string> tags_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace trellis::trainer::testing_support
