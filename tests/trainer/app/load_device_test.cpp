#include "trainer/app/prepare/load_device.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"
#include "trainer/data/data_module.h"
#include "trainer/data/make_data_module.h"
#include "trainer/loop/trainer.h"
#include "trainer/pipeline/replay.h"

namespace trellis::trainer {
namespace {

/// PP 2 with as many micro-batches as make a replay worth it, on the emulated device without data.
class RunRanksOn : public ::testing::Test {
 protected:
  RunRanksOn() {
    config_.data.micro_batch_size = 1;
    config_.data.global_batch_size = 16;
    choice_ = {.device = "neuron", .instance = "trn1.2xlarge", .shape_only = true, .replay = true};
    load_device(choice_, config_);
    world_.world_size = config_.world_size();
    world_.device_type = choice_.device;
    world_.plugin = &runtime::DevicePlugin::load(runtime::DevicePlugin::default_path());
    world_.shape_only = true;
    world_.timeout = std::chrono::seconds(100);
  }

  void train(runtime::RankContext& rank) {
    Trainer(config_, rank, make_empty_data_module(config_)).fit([](const StepResult&) {});
  }

  RunConfig config_ = testing_support::small_llama({.tp = 1, .pp = 2, .dp = 1}, "fp32", 1);
  DeviceChoice choice_;
  runtime::WorldOptions world_;
};

TEST_F(RunRanksOn, RanksWhosePassesRepeatRunOnce) {
  std::mutex mutex;
  std::vector<bool> replays;
  run_ranks_on(choice_, config_, world_, [&](runtime::RankContext& rank) {
    train(rank);
    const std::lock_guard lock(mutex);
    replays.push_back(rank.replays());
  });
  EXPECT_EQ(replays, (std::vector<bool>{true, true}));
}

TEST_F(RunRanksOn, RanksWhosePassesDifferRunAgainAndExecuteThem) {
  std::mutex mutex;
  std::vector<bool> ended;
  run_ranks_on(choice_, config_, world_, [&](runtime::RankContext& rank) {
    if (rank.replays() && rank.rank() == 1) throw PassesDiffer();
    train(rank);
    const std::lock_guard lock(mutex);
    ended.push_back(rank.replays());
  });
  // Rank 0 may have left the first run at the border of a step.
  ASSERT_GE(ended.size(), 2U);
  EXPECT_EQ(std::vector<bool>(ended.end() - 2, ended.end()), (std::vector<bool>{false, false}));
  EXPECT_EQ(std::count(ended.begin(), ended.end(), false), 2);
}

TEST_F(RunRanksOn, OtherErrorsAreTheRuns) {
  EXPECT_THROW(run_ranks_on(choice_, config_, world_,
                            [](runtime::RankContext&) { throw std::runtime_error("other"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace trellis::trainer
