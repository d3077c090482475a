// NxD's records of a training: hooks at layers, the pipeline's timeline.
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/serialization/pickle.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_model.h"
#include "trainer/config/schedule/scheduler.h"

namespace trellis::trainer::hooks_test {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using testing::HasSubstr;

NxDConfig config_of(int pp, int micro_batches) {
  NxDConfig config;
  config.pipeline_parallel_size = pp;
  config.dtype = at::kDouble;
  config.pipeline_config = PipelineConfig{
      .num_microbatches = micro_batches, .transformer_layer_cls = "Block", .auto_partition = true};
  return config;
}

LTModuleArguments arguments_of(std::int64_t steps) {
  LTModuleArguments arguments;
  arguments.model_fn = [](const ModuleContext& context) { return user_model(context); };
  arguments.optim = {.name = "adamw", .lr = 1e-2};
  arguments.max_steps = steps;
  arguments.train_batch_size = static_cast<int>(kGlobalBatch);
  return arguments;
}

void train(const NxDConfig& config, const NeuronHooksConfig& hooks_config, std::int64_t steps,
           NeuronTensorBoardLogger* logger = nullptr) {
  runtime::WorldOptions world;
  world.world_size = config.pipeline_parallel_size;
  NeuronHooksCallback hooks(hooks_config);
  if (logger != nullptr) hooks.logger(*logger);
  LightningTrainer trainer(NeuronXLAStrategy(world, config));
  trainer.callback(hooks).fit(arguments_of(steps), [](std::int64_t index, const SamplerArguments&) {
    return user_batch(index, 1, 0);
  });
}

at::Tensor dumped(const fs::path& directory, const std::string& layer, int step, int pp_rank,
                  const std::string& what) {
  const fs::path file =
      directory / layer / ("global_step_" + std::to_string(step)) /
      ("dp_rank_00_tp_rank_00_pp_rank_0" + std::to_string(pp_rank) + "_" + what + ".pt");
  const std::string bytes = read_all(file);
  if (bytes.empty()) {
    ADD_FAILURE() << file << " is missing";
    return at::zeros({1});
  }
  return torch::jit::pickle_load({bytes.begin(), bytes.end()}).toTensor();
}

std::set<std::string> files_below(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) names.insert(fs::relative(entry.path(), directory).string());
  }
  return names;
}

TEST(NeuronHooks, WhatLeavesALayerEntersTheNextForwardAndBackward) {
  const TemporaryDirectory temporary;
  train(config_of(2, 4),
        {.target_layers = {"embed", "block.0", "block.1"},
         .dump_only_norms = false,
         .directory = temporary.path()},
        1);
  const auto raw = [&](const std::string& layer, const std::string& what) {
    return dumped(temporary.path(), layer, 0, 0, what + "_raw");
  };
  EXPECT_EQ(raw("block.0", "layer_output").sizes(),
            (std::vector<std::int64_t>{4, kSequence, kGlobalBatch / 4, kHidden}))
      << "one per micro-batch";
  EXPECT_TRUE(raw("embed", "layer_output").equal(raw("block.0", "layer_input")));
  EXPECT_TRUE(raw("block.0", "layer_output").equal(raw("block.1", "layer_input")));
  EXPECT_TRUE(raw("block.0", "grad_output").equal(raw("block.1", "grad_input")));
  EXPECT_FALSE(raw("block.0", "grad_output").equal(raw("block.0", "grad_input")));
  EXPECT_EQ(files_below(temporary.path())
                .count("embed/global_step_0/dp_rank_00_tp_rank_00_pp_rank_00_grad_input_raw.pt"),
            0U)
      << "ids have none";
}

TEST(NeuronHooks, NormsAreThoseOfTheWholeBatchInEveryCutOfIt) {
  const TemporaryDirectory one, cut, raw;
  const std::vector<std::string> targets = {"block.0", "block.3"};
  train(config_of(1, 1), {.target_layers = targets, .hooks_interval = 2, .directory = one.path()},
        3);
  train(config_of(2, 4), {.target_layers = targets, .hooks_interval = 2, .directory = cut.path()},
        3);
  train(config_of(1, 1),
        {.target_layers = targets, .dump_only_norms = false, .directory = raw.path()}, 1);
  for (const std::string what : {"layer_input", "layer_output", "grad_input", "grad_output"}) {
    for (const std::string& layer : targets) {
      for (const int step : {0, 2}) {
        const double whole = dumped(one.path(), layer, step, 0, what + "_norm").item<double>();
        EXPECT_GT(whole, 0);
        EXPECT_NEAR(dumped(cut.path(), layer, step, layer == "block.0" ? 0 : 1, what + "_norm")
                        .item<double>(),
                    whole, 1e-9 * whole)
            << layer << what << step;
      }
      const double norm =
          dumped(raw.path(), layer, 0, 0, what + "_raw").pow(2).sum().sqrt().item<double>();
      EXPECT_NEAR(dumped(one.path(), layer, 0, 0, what + "_norm").item<double>(), norm,
                  1e-12 * norm);
    }
  }
  EXPECT_EQ(files_below(one.path()).size(), 16U) << "two layers, steps 0 and 2, four kinds";
}

TEST(NeuronHooks, TheSwitchesAct) {
  const TemporaryDirectory temporary;
  const auto files = [&](const std::string& name, NeuronHooksConfig config) {
    config.directory = temporary.path() / name;
    config.target_layers = {"block.0", "block.3"};
    fs::create_directories(config.directory);
    train(config_of(2, 4), config, 1);
    return files_below(config.directory).size();
  };
  EXPECT_EQ(files("all", {}), 8U);
  EXPECT_EQ(files("off", {.hooks = false}), 0U);
  EXPECT_EQ(files("activations", {.enable_grad_dumps = false}), 4U);
  EXPECT_EQ(files("gradients", {.enable_activation_dumps = false}), 4U);
  EXPECT_EQ(files("rank0", {.dump_only_master_rank = true}), 4U) << "of its stage";
}

TEST(NeuronHooks, NormsOfRankZeroGoToTensorBoard) {
  const TemporaryDirectory temporary;
  {
    NeuronTensorBoardLogger logger(temporary.path() / "logs");
    train(config_of(1, 1),
          {.target_layers = {"block.1"},
           .dump_only_master_rank = true,
           .enable_tb_logging_master_rank_activation_norms = true,
           .directory = temporary.path() / "dumps"},
          1, &logger);
  }
  const std::string events = read_all(temporary.path() / "logs" / "events.out.tfevents.0.trellis");
  for (const char* tag : {"activation_input_norm/block.1", "activation_output_norm/block.1"})
    EXPECT_THAT(events, HasSubstr(tag));
  EXPECT_THAT(events, testing::Not(HasSubstr("grad_input_norm")));
}

TEST(NeuronHooks, TheyChangeNoNumber) {
  const TemporaryDirectory temporary;
  const auto losses = [&](bool with_hooks) {
    std::vector<double> values;
    runtime::WorldOptions world;
    const NeuronHooksCallback hooks(
        {.hooks = with_hooks, .target_layers = {"block.1"}, .directory = temporary.path()});
    LightningTrainer trainer(NeuronXLAStrategy(world, config_of(1, 4)));
    trainer.callback(hooks).fit(
        arguments_of(3),
        [](std::int64_t index, const SamplerArguments&) { return user_batch(index, 1, 0); },
        [&](const LTStep& step) { values.push_back(*step.loss); });
    return values;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(NeuronHooks, MisuseIsNamed) {
  const auto message_of = [](const NeuronHooksConfig& config) -> std::string {
    try {
      train(config_of(2, 4), config, 1);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(
      message_of({.target_layers = {"block.7"}}),
      HasSubstr(
          "target_layers: \"block.7\" is no layer of the model: expected some of embed, block.0,"));
  EXPECT_THAT(message_of({.hooks_interval = 0}),
              HasSubstr("hooks_interval: expected 1 or more, got 0"));
  EXPECT_THAT(message_of({.enable_tb_logging_master_rank_grad_norms = true}),
              HasSubstr("enable_tb_logging_master_rank_grad_norms: these are the norms of rank 0"));
}

TEST(PipelineTimeline, HoldsEveryTaskOfEveryPipelineRankInItsOrder) {
  const TemporaryDirectory temporary;
  const fs::path file = temporary.path() / "timeline.json";
  NxDConfig config = config_of(2, 4);
  config.pipeline_config->trace_file_path = file.string();
  constexpr int kPasses = 3;
  train(config, {.hooks = false}, kPasses);
  std::string text = read_all(file);
  ASSERT_TRUE(text.ends_with(",\n"));
  text.resize(text.size() - 2);
  const nlohmann::json events = nlohmann::json::parse(text + "]");
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> expected, found;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const Task& task : Train1F1BSchedule(4, 2, rank).tasks())
        expected.push_back(to_string(task));
    }
    double last = 0;
    for (const auto& event : events) {
      if (event.at("pid") != rank) continue;
      if (event.at("ph") == "M") {
        EXPECT_THAT(event.at("args").at("name").get<std::string>(),
                    HasSubstr(rank == 0 ? "embed … plain" : "block.2 … head"));
        continue;
      }
      found.push_back(event.at("name"));
      EXPECT_GE(event.at("ts").get<double>(), last) << "tasks do not overlap";
      last = event.at("ts").get<double>() + event.at("dur").get<double>() - 1e-2;
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PipelineTimeline, APlaceThatCannotBeWrittenIsNamed) {
  NxDConfig config = config_of(1, 1);
  config.pipeline_config->trace_file_path = "/no/such/place/timeline.json";
  try {
    train(config, {.hooks = false}, 1);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("/no/such/place/timeline.json: cannot write here: No such file"));
  }
}

}  // namespace
}  // namespace trellis::trainer::hooks_test
