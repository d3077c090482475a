// Host memory of training: the need against what the trainer's tensors take, the refusal, and the
// end after a failed allocation.
#include "trainer/app/prepare/host_need.h"

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <oneapi/dnnl/dnnl_common.hpp>

#include "tests/integration/layout_run.h"
#include "trainer/app/prepare/failed_allocation.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer {
namespace {

using testing::HasSubstr;
using testing_support::Layout;
using testing_support::RandomTokens;
using testing_support::small_llama;

struct Taken {
  std::atomic<std::int64_t> weights = 0, gradients = 0, states = 0;
};

/// Measures the bytes of all ranks' long-lived tensors in the first step.
void train(const RunConfig& config, Taken& taken) {
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    TrainerHooks hooks;
    hooks.built = [&](ParameterList& parameters) {
      for (const Parameter& parameter : parameters)
        taken.weights += static_cast<std::int64_t>(
            (parameter.is_fully_sharded() ? parameter.shard : parameter.tensor).nbytes());
    };
    hooks.gradients_reduced = [&](const NeuronZero1Optimizer& optimizer) {
      optimizer.for_each_gradient([&](const at::Tensor& tensor) {
        taken.gradients += static_cast<std::int64_t>(tensor.nbytes());
      });
      optimizer.for_each_state([&](const at::Tensor& tensor) {
        taken.states += static_cast<std::int64_t>(tensor.nbytes());
      });
    };
    const ParallelSizes sizes{
        .tensor_model_parallel_size = config.tp(),
        .pipeline_model_parallel_size = config.pp(),
        .data_parallel_replicate_size = config.distributed_strategy.data_parallel_replicate_size};
    Trainer trainer(config, rank, std::make_shared<RandomTokens>(config),
                    ParallelState::initialize_model_parallel(rank, sizes), hooks);
    trainer.fit([](const StepResult&) {});
  });
}

TEST(HostNeed, IsWhatTheTrainersTensorsTake) {
  struct Case {
    Layout layout;
    const char* precision;
    const char* optimizer = "adamw";
    bool fsdp = false;
    int copies = 1;
  };
  for (const Case& c : std::vector<Case>{{{}, "fp32"},
                                         {{2, 2, 1, true, true}, "mixed_precision"},
                                         {{1, 1, 4, false, true}, "mixed_precision"},
                                         {{2, 1, 2, true, true}, "mixed_precision", "adamw", true},
                                         {{1, 1, 4, false, true}, "fp32", "adamw", true, 2},
                                         {{1, 2, 2, false, false}, "fp32", "sgd"},
                                         {{1, 2, 1, false, true, 2}, "bf16SR"}}) {
    RunConfig config = small_llama(c.layout, c.precision, 1);
    config.model.hidden_size = 64;
    config.distributed_strategy.fsdp = c.fsdp;
    config.distributed_strategy.data_parallel_replicate_size = c.copies;
    if (std::string(c.optimizer) != "adamw")
      config.model.optim = default_optim_section(c.optimizer);
    const std::string type = c.precision;
    config.precision.weights_bf16 = type != "fp32";
    config.precision.master_weights = config.precision.fp32_grad_acc = type == "mixed_precision";
    config.model.head_dim = 8;
    Taken taken;
    train(config, taken);
    const HostNeed need = host_need(config, 2);
    const auto expect_near = [&](std::int64_t got, std::int64_t expected, const char* what) {
      EXPECT_NEAR(static_cast<double>(got), static_cast<double>(expected),
                  0.03 * static_cast<double>(expected))
          << what << " " << c.precision << " " << c.optimizer;
    };
    expect_near(need.weights, taken.weights, "weights");
    expect_near(need.gradients, taken.gradients, "gradients");
    expect_near(need.optimizer_states, taken.states, "states");
    EXPECT_GT(need.activations, 0);
  }
}

TEST(HostNeed, GrowsWithTheSequenceAndFallsWithRecomputation) {
  RunConfig config = small_llama({1, 2, 2, false, true}, "fp32", 1);
  const std::int64_t before = host_need(config, 4).activations;
  config.model.encoder_seq_length *= 3;
  EXPECT_EQ(host_need(config, 4).activations, 3 * before);
  config.model.recompute = Recompute::kFull;
  EXPECT_LT(host_need(config, 4).activations, 3 * before);
}

TEST(HostNeed, ARunThatDoesNotFitIsRefusedWithBothNumbers) {
  const RunConfig config = small_llama({2, 1, 2, true, true}, "fp32", 1);
  const std::int64_t need = host_need(config, 2).total();
  EXPECT_NO_THROW(check_host_memory(config, 2, need, "a limit"));
  try {
    check_host_memory(config, 2, need - 1, "a limit");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(), testing::ContainsRegex(
                                  "needs at least [0-9.]+ [KM]iB for 4 ranks .* but [0-9.]+ [KM]iB "
                                  "are available \\(a limit\\)"));
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("`trellis simulate`"), HasSubstr("`trellis memory`")));
  }
}

TEST(HostNeed, AModelThatIsOnlyEvaluatedNeedsItsWeights) {
  RunConfig config = small_llama({2, 1, 2, true, true}, "fp32", 1);
  const std::int64_t weights = host_need(config, 1).weights;
  config.distributed_strategy.fsdp = true;  // of the training
  EXPECT_NO_THROW(check_host_memory_of_weights(config, weights, "a limit"));
  try {
    check_host_memory_of_weights(config, weights - 1, "a limit");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(),
                testing::ContainsRegex("at least [0-9,]+ B for 4 ranks, but [0-9,]+ B are"));
  }
}

TEST(FailedAllocation, IsRecognised) {
  try {
    (void)at::empty({std::int64_t{1} << 56});
    FAIL() << "allocated";
  } catch (const std::exception& error) {
    const auto failed = failed_allocation(error);
    ASSERT_TRUE(failed.has_value()) << error.what();
    EXPECT_EQ(failed->code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(
        failed->what(),
        HasSubstr("the host has no memory left: you tried to allocate 288230376151711744 bytes; "
                  "`trellis simulate`"));
  }
  EXPECT_TRUE(failed_allocation(std::bad_alloc()).has_value());
  EXPECT_TRUE(failed_allocation(dnnl::error(dnnl_out_of_memory, "could not create a primitive")));
  EXPECT_FALSE(failed_allocation(dnnl::error(dnnl_invalid_arguments, "wrong shapes")));
  EXPECT_FALSE(failed_allocation(ConfigError("another")).has_value());
}

TEST(LastResortDeathTest, EndsTheProcessWhenRanksComputeOn) {
  EXPECT_EXIT(
      {
        LastResort last;
        last.arm(Error(ExitCode::kDoesNotFit, "rank 1: the host has no memory left"));
        std::this_thread::sleep_for(std::chrono::minutes(10));  // a rank that computes
      },
      testing::ExitedWithCode(3), "error: rank 1: the host has no memory left");
}

TEST(LastResort, DoesNothingWhenTheRunEnds) {
  const auto began = std::chrono::steady_clock::now();
  {
    LastResort last;
    last.arm(Error(ExitCode::kDoesNotFit, "no memory"));
  }
  { const LastResort unarmed; }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(500));
}

}  // namespace
}  // namespace trellis::trainer
