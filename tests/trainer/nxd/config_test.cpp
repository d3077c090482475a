// neuronx_distributed_config: defaults and rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/nxd/neuronx_distributed_config.h"

namespace trellis::trainer::config_test {
namespace {

using testing::HasSubstr;

TEST(NxDConfig, TheDefaultsAreNxDs) {
  const NxDConfig config = neuronx_distributed_config({});
  EXPECT_EQ(config.tensor_parallel_size, 1);
  EXPECT_EQ(config.pipeline_parallel_size, 1);
  EXPECT_EQ(config.optimizer_config.zero_one_enabled, false);
  EXPECT_EQ(config.optimizer_config.grad_clipping, true);
  EXPECT_EQ(config.optimizer_config.max_grad_norm, 1.0);
  EXPECT_EQ(config.model_init_config.sequential_move_factor, 11);
  EXPECT_EQ(config.model_init_config.meta_device_init, false);
  EXPECT_EQ(config.mixed_precision_config.use_master_weights, false);
  EXPECT_EQ(config.mixed_precision_config.use_master_weights_in_ckpt, false);
  EXPECT_FALSE(config.activation_checkpoint_config.has_value());
}

TEST(NxDConfig, MixedPrecisionFollowsZeroOne) {
  NxDConfig arguments;
  arguments.optimizer_config.zero_one_enabled = true;
  const NxDConfig config = neuronx_distributed_config(arguments);
  EXPECT_EQ(config.mixed_precision_config.use_master_weights, true);
  EXPECT_EQ(config.mixed_precision_config.use_fp32_grad_acc, true);
  EXPECT_EQ(config.mixed_precision_config.use_master_weights_in_ckpt, false);
}

TEST(NxDConfig, WithoutClippingThereIsNoMaxGradNorm) {
  NxDConfig arguments;
  arguments.optimizer_config.grad_clipping = false;
  EXPECT_FALSE(neuronx_distributed_config(arguments).optimizer_config.max_grad_norm.has_value());
}

TEST(NxDConfig, TheMoveFactorOfTheInitConfigWins) {
  NxDConfig arguments;
  arguments.sequential_move_factor = 7;
  EXPECT_EQ(neuronx_distributed_config(arguments).model_init_config.sequential_move_factor, 7);
  arguments.model_init_config.sequential_move_factor = 3;
  EXPECT_EQ(neuronx_distributed_config(arguments).model_init_config.sequential_move_factor, 3);
}

std::string problems_of(const NxDConfig& arguments) {
  try {
    (void)neuronx_distributed_config(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

NxDConfig two_stages(const PipelineConfig& pipeline) {
  NxDConfig config;
  config.pipeline_parallel_size = 2;
  config.pipeline_config = pipeline;
  return config;
}

TEST(NxDConfig, CutsAndAutoPartitionExcludeEachOther) {
  EXPECT_THAT(problems_of(two_stages({})),
              HasSubstr("exactly one of auto_partition and pipeline_cuts, got neither"));
  EXPECT_THAT(problems_of(two_stages({.pipeline_cuts = {"a"}, .auto_partition = true})),
              HasSubstr("got both"));
  EXPECT_EQ(problems_of(two_stages({.pipeline_cuts = {"a"}})), "accepted");
  EXPECT_EQ(problems_of(two_stages({.auto_partition = true})), "accepted");
}

TEST(NxDConfig, SeveralStagesNeedAPipelineConfig) {
  NxDConfig config;
  config.pipeline_parallel_size = 2;
  EXPECT_THAT(problems_of(config),
              HasSubstr("pipeline_config: a model of several pipeline stages needs one"));
}

TEST(NxDConfig, TheTwoFormsOfTheLossExcludeEachOther) {
  EXPECT_THAT(
      problems_of(two_stages(
          {.auto_partition = true, .return_mb_loss = true, .broadcast_and_average_loss = true})),
      HasSubstr("exclude each other"));
}

TEST(NxDConfig, MetaDeviceInitNeedsAnInitialiser) {
  NxDConfig config;
  config.model_init_config.meta_device_init = true;
  EXPECT_THAT(problems_of(config), HasSubstr("expected a param_init_fn"));
  config.model_init_config.param_init_fn = [](const std::string&, const std::string&, at::Tensor&) {
  };
  EXPECT_EQ(problems_of(config), "accepted");
}

TEST(NxDConfig, AllProblemsAreReportedTogether) {
  NxDConfig config = two_stages({.num_microbatches = 0,
                                 .auto_partition = true,
                                 .input_names = {"inputs"},
                                 .output_loss_value_spec = {true, true}});
  config.tensor_parallel_size = 0;
  config.expert_parallel_size = 0;
  config.context_parallel_size = -1;
  config.kv_size_multiplier = 0;
  config.lora_config = LoraConfig{.lora_rank = -3, .target_modules = {"up"}};
  config.sequence_parallel = true;
  config.sequential_move_factor = 33;
  config.mixed_precision_config.use_master_weights = true;
  config.optimizer_config.max_grad_norm = 0;
  const std::string text = problems_of(config);
  for (const char* part :
       {"tensor_parallel_size: expected 1 or more, got 0",
        "expert_parallel_size: expected 1 or more, got 0",
        "context_parallel_size: expected 1 or more, got -1",
        "kv_size_multiplier: expected 1 or more, got 0",
        "lora_config.lora_rank: expected 1 or more, got -3", "sequence_parallel: expected",
        "num_microbatches: expected 1 or more, got 0", "got \"inputs\"",
        "exactly one output to be the loss, got 2",
        "sequential_move_factor: expected 1 … 32, got 33",
        "use_master_weights: works on ZeRO-1's shards", "max_grad_norm: expected more than 0"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace trellis::trainer::config_test
