// The Lightning-like classes: the same numbers as the loop written out, output on one rank only.
#include <filesystem>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_model.h"

namespace trellis::trainer::lightning_test {
namespace {

using namespace testing_support;

NxDConfig config_of(int pp) {
  NxDConfig config;
  config.pipeline_parallel_size = pp;
  config.dtype = at::kDouble;
  PipelineConfig pipeline;
  pipeline.num_microbatches = pp > 1 ? 4 : 1;
  pipeline.transformer_layer_cls = "Block";
  pipeline.auto_partition = true;
  config.pipeline_config = pipeline;
  return config;
}

LTModuleArguments arguments_of(int grad_accum_steps) {
  LTModuleArguments arguments;
  arguments.model_fn = [](const ModuleContext& context) { return user_model(context); };
  arguments.optim = {.name = "adamw",
                     .lr = 1e-2,
                     .sched = SchedSection{.name = "CosineAnnealing", .warmup_steps = 2}};
  arguments.max_steps = 4;
  arguments.train_batch_size = static_cast<int>(kGlobalBatch) / grad_accum_steps;
  arguments.grad_accum_steps = grad_accum_steps;
  return arguments;
}

runtime::WorldOptions world_of(int ranks) {
  runtime::WorldOptions world;
  world.world_size = ranks;
  return world;
}

/// Batch `index` of a step that is cut into `parts` batches.
MicroBatch part_of_batch(std::int64_t index, int parts) {
  const MicroBatch whole = user_batch(index / parts, 1, 0);
  const std::int64_t rows = kGlobalBatch / parts;
  MicroBatch part;
  part.input_ids = whole.input_ids.narrow(0, index % parts * rows, rows);
  part.labels = whole.labels.narrow(0, index % parts * rows, rows);
  return part;
}

std::vector<double> losses_of(int pp, int grad_accum_steps, std::string* shown = nullptr) {
  std::vector<double> losses;
  std::ostringstream out;
  NeuronTQDMProgressBar bar(out);
  LightningTrainer trainer(NeuronXLAStrategy(world_of(pp), config_of(pp)));
  const auto data = [&](std::int64_t index, const SamplerArguments&) {
    return part_of_batch(index, grad_accum_steps);
  };
  trainer.callback(bar).fit(arguments_of(grad_accum_steps), data,
                            [&](const LTStep& step) { losses.push_back(*step.loss); });
  if (shown != nullptr) *shown = out.str();
  return losses;
}

TEST(Lightning, AccumulationAndPipelineStagesGiveTheSameLosses) {
  std::string shown;
  const std::vector<double> plain = losses_of(1, 1, &shown);
  ASSERT_EQ(plain.size(), 4U);
  EXPECT_LT(plain.back(), plain.front());
  for (const auto& losses : {losses_of(1, 4), losses_of(2, 1)}) {
    ASSERT_EQ(losses.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(losses[i], plain[i], 1e-12) << i;
  }
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 4) << "one line per step, from one rank";
  EXPECT_THAT(shown, testing::HasSubstr("step 4/4  loss "));
}

TEST(Lightning, MetricsComeFromTheLastStageOrOnRequestFromRankZero) {
  for (const bool log_rank0 : {false, true}) {
    NeuronXLAStrategy strategy(world_of(2), config_of(2));
    LTModuleArguments arguments = arguments_of(1);
    arguments.nxd_config = strategy.nxd_config();
    arguments.log_rank0 = log_rank0;
    strategy.launch([&](runtime::RankContext& rank) {
      NeuronLTModule module(arguments);
      module.setup(rank);
      module.configure_optimizers();
      EXPECT_EQ(module.is_logging_rank(), rank.rank() == (log_rank0 ? 0 : 1));
      EXPECT_EQ(module.training_step(part_of_batch(0, 1))->loss.has_value(),
                module.is_logging_rank());
    });
  }
}

TEST(Lightning, TheTensorBoardLoggerWritesAnEventFile) {
  const TemporaryDirectory directory;
  {
    NeuronTensorBoardLogger logger(directory.path() / "logs");
    LightningTrainer trainer(NeuronXLAStrategy(world_of(1), config_of(1)));
    trainer.logger(logger).fit(arguments_of(1), [](std::int64_t index, const SamplerArguments&) {
      return part_of_batch(index, 1);
    });
  }
  EXPECT_GT(std::filesystem::file_size(directory.path() / "logs" / "events.out.tfevents.0.trellis"),
            100U);
}

TEST(Lightning, ThePrecisionPluginMakesWeightsBf16) {
  EXPECT_EQ(NeuronXLAPrecisionPlugin{true}.applied_to({}).dtype, at::kBFloat16);
  EXPECT_EQ(NeuronXLAPrecisionPlugin{}.applied_to({}).dtype, at::kFloat);
}

TEST(Lightning, TheStrategysSizesCountWithoutAConfig) {
  EXPECT_EQ(NeuronXLAStrategy(world_of(4), {}, 2, 2).nxd_config().tensor_parallel_size, 2);
  EXPECT_EQ(NeuronXLAStrategy(world_of(2), config_of(2), 4, 1).nxd_config().tensor_parallel_size,
            1);
}

TEST(Lightning, MisuseIsNamed) {
  const auto message_of = [](LTModuleArguments arguments) -> std::string {
    try {
      NeuronLTModule module(std::move(arguments));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  LTModuleArguments arguments = arguments_of(2);
  arguments.nxd_config = config_of(2);
  arguments.manual_opt = false;
  arguments.logging_interval = 0;
  EXPECT_THAT(message_of(arguments),
              testing::AllOf(testing::HasSubstr("manual_opt: only manual optimization works"),
                             testing::HasSubstr("grad_accum_steps: pipeline stages accumulate"),
                             testing::HasSubstr("logging_interval: expected 1 or more, got 0")));
}

}  // namespace
}  // namespace trellis::trainer::lightning_test
