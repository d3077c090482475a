// Saving and loading whole trainings: exact resume, every layout into every layout, lifecycle.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/output_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/spread.h"
#include "tests/trainer/python_oracle.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint::training_test {
namespace {

using testing::HasSubstr;
using testing_support::Canonical;
using testing_support::checkpoint_of;
using testing_support::config_of;
using testing_support::resumed_from;
using testing_support::Spread;
using testing_support::spreads;
using testing_support::train;
using testing_support::TrainingRun;
using testing_support::worst_difference;
using trainer::RunConfig;
using trainer::testing_support::Layout;
namespace fs = std::filesystem;

/// The same run from the checkpoint of a step.
RunConfig resumed(const RunConfig& config, const std::string& folder, std::int64_t step) {
  return resumed_from(config, checkpoint_of(config, folder, step));
}

void expect_bit_equal(const Canonical& got, const Canonical& expected, std::int64_t step) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [key, tensor] : expected)
    ASSERT_TRUE(got.at(key).equal(tensor)) << key << " after step " << step;
}

const Spread kEightRanks{{2, 2, 2, true, true}};

RunConfig with_precision(const std::string& type) {
  RunConfig config = config_of(kEightRanks, type, 7);
  const bool masters = type == "mixed_precision";
  config.precision = {.type = type,
                      .weights_bf16 = type != "fp32",
                      .stochastic_rounding = type == "bf16SR",
                      .master_weights = masters,
                      .fp32_grad_acc = masters};
  config.exp_manager.ema = trainer::EmaSection{.decay = 0.9};
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  config.exp_manager.checkpoints.every_n_train_steps = 3;
  config.exp_manager.checkpoints.every_n_epochs = 0;
  return config;
}

class ExactResume : public testing::TestWithParam<const char*> {};

TEST_P(ExactResume, EightRanksWithDropoutGoOnBitForBit) {
  const TemporaryDirectory folder;
  const RunConfig config = with_precision(GetParam());
  const TrainingRun whole = train(config, folder.path());
  const TrainingRun cut = train(resumed(config, folder.path(), 3), folder.path());
  ASSERT_EQ(cut.losses.begin()->first, 4);
  for (const auto& [step, loss] : cut.losses) {
    EXPECT_EQ(loss, whole.losses.at(step)) << "step " << step;
    expect_bit_equal(cut.states.at(step), whole.states.at(step), step);
  }
  EXPECT_EQ(cut.losses.rbegin()->first, 7);
}

INSTANTIATE_TEST_SUITE_P(Precision, ExactResume,
                         testing::Values("fp32", "bf16SR", "mixed_precision"));

TEST(Reshard, RandomPairsOfLayoutsGoOnAsTheUninterruptedRun) {
  constexpr std::int64_t kSave = 2, kSteps = 4;
  std::map<std::size_t, TrainingRun> whole;
  const TemporaryDirectory folder;
  const auto folder_of = [&](std::size_t i) {
    return (folder.path() / std::to_string(i)).string();
  };
  const auto reference = [&](std::size_t i) -> const TrainingRun& {
    if (!whole.contains(i)) {
      RunConfig config = config_of(spreads()[i], "fp64", kSteps);
      config.exp_manager.checkpoints.every_n_train_steps = kSave;
      config.exp_manager.checkpoints.every_n_epochs = 0;
      whole[i] = train(config, folder_of(i));
    }
    return whole.at(i);
  };
  std::mt19937 random(7);
  for (int pair = 0; pair < 30; ++pair) {
    const std::size_t from = random() % spreads().size(), to = random() % spreads().size();
    const TrainingRun& expected = reference(from);
    const RunConfig config =
        resumed(config_of(spreads()[to], "fp64", kSteps), folder_of(from), kSave);
    const TrainingRun got = train(config, folder_of(to));
    EXPECT_LE(worst_difference(got.states.at(kSteps), expected.states.at(kSteps)), 1e-10)
        << from << " to " << to;
    EXPECT_NEAR(got.losses.at(kSteps), expected.losses.at(kSteps), 1e-10);
  }
}

TEST(Reshard, StatesOfEveryOptimizerMoveWithTheWeights) {
  for (const trainer::OptimizerInfo& info : trainer::optimizer_table()) {
    const TemporaryDirectory folder;
    const auto config_for = [&](const Spread& spread) {
      RunConfig config = config_of(spread, "fp64", 4);
      trainer::OptimSection optim = trainer::default_optim_section(info.name);
      optim.lr = info.name == "rprop" ? 1e-4 : 3e-3;
      optim.weight_decay = info.has_weight_decay ? 0.1 : 0;
      if (info.name == "sgd") optim.arguments["momentum"] = 0.9;
      config.model.optim = optim;
      config.exp_manager.checkpoints.every_n_train_steps = 2;
      config.exp_manager.checkpoints.every_n_epochs = 0;
      return config;
    };
    const TrainingRun whole = train(config_for(kEightRanks), folder.path());
    const TrainingRun got =
        train(resumed(config_for({{4, 1, 1, false, false}}), folder.path(), 2), folder.path());
    EXPECT_LE(worst_difference(got.states.at(4), whole.states.at(4)), 1e-10) << info.name;
  }
}

TEST(Reshard, ExpertsMoveBetweenExpertParallelSizes) {
  const auto mixture = [](Layout layout, int ep, const char* optimizer) {
    RunConfig config = config_of({layout}, "fp64", 4);
    config.distributed_strategy.expert_model_parallel_size = ep;
    config.model.head_dim = config.model.hidden_size / config.model.num_attention_heads;
    config.model.moe = trainer::MoeSection{.num_experts = 8, .top_k = 2, .dropless = true};
    trainer::OptimSection optim = trainer::default_optim_section(optimizer);
    optim.lr = 3e-3;
    config.model.optim = optim;
    config.exp_manager.checkpoints.every_n_train_steps = 2;
    config.exp_manager.checkpoints.every_n_epochs = 0;
    return config;
  };
  const auto moves = [&](const RunConfig& from, std::initializer_list<RunConfig> targets) {
    const TemporaryDirectory folder;
    const TrainingRun whole = train(from, folder.path());
    const fs::path saved = checkpoint_of(from, folder.path(), 2);
    EXPECT_TRUE(fs::exists(saved / "model/dp_rank_00_ep_rank_01_tp_rank_00_pp_rank_00.pt"));
    for (const RunConfig& to : targets) {
      SCOPED_TRACE("EP " + std::to_string(from.ep()) + " to " + std::to_string(to.ep()));
      const TrainingRun got = train(resumed(to, folder.path(), 2), folder.path());
      EXPECT_LE(worst_difference(got.states.at(4), whole.states.at(4)), 1e-10);
    }
  };
  const Layout wide{1, 1, 8, false, true}, mixed{2, 1, 4, true, true},
      staged{1, 2, 4, false, false};
  moves(mixture(wide, 8, "adamw"), {mixture(mixed, 2, "adamw"), mixture({}, 1, "adamw")});
  moves(mixture(staged, 4, "adamw"), {mixture(wide, 8, "adamw"), mixture(mixed, 2, "adamw")});
  moves(mixture(mixed, 2, "adafactor"), {mixture(staged, 4, "adafactor")});
  const auto in_dcp = [](RunConfig config) {
    config.exp_manager.checkpoints.zero1_dcp = config.exp_manager.checkpoints.async = true;
    return config;
  };
  moves(in_dcp(mixture(wide, 8, "adamw")), {mixture(mixed, 2, "adamw")});
  moves(in_dcp(mixture(mixed, 2, "adafactor")), {mixture(staged, 4, "adafactor")});
  const auto gathered = [](RunConfig config) {
    config.model.dist_ckpt.parallel_dist_opt = false;
    return config;
  };
  moves(gathered(mixture(wide, 8, "adamw")), {mixture(mixed, 2, "adamw")});
  moves(gathered(mixture(mixed, 2, "adafactor")), {mixture(staged, 4, "adafactor")});
}

TEST(Reshard, ContextParallelSizesMove) {
  const auto config_for = [](Layout layout, int cp) {
    RunConfig config = config_of({layout}, "fp64", 4);
    config.trainer.devices = layout.world_size() * cp;
    config.distributed_strategy.context_parallel_size = cp;
    config.model.ring_attention = cp > 1;
    config.exp_manager.checkpoints.every_n_train_steps = 2;
    config.exp_manager.checkpoints.every_n_epochs = 0;
    return config;
  };
  const RunConfig ring = config_for({2, 1, 2, true, true}, 2), one = config_for({}, 1),
                  staged = config_for({1, 2, 1, false, true}, 4);
  for (const auto& [from, to] : {std::pair(ring, one), std::pair(one, ring), {ring, staged}}) {
    SCOPED_TRACE("CP " + std::to_string(from.cp()) + " to " + std::to_string(to.cp()));
    const TemporaryDirectory folder;
    const TrainingRun whole = train(from, folder.path());
    const TrainingRun got = train(resumed(to, folder.path(), 2), folder.path());
    EXPECT_LE(worst_difference(got.states.at(4), whole.states.at(4)), 1e-10);
  }
}

TEST(Reshard, APaddedVocabularyIsStrippedOrFilledWithZeros) {
  const TemporaryDirectory folder;
  RunConfig config = config_of({{2, 1, 1}}, "fp64", 2);
  config.exp_manager.checkpoints.every_n_train_steps = 2;
  const TrainingRun saved = train(config, folder.path());
  for (const int vocabulary : {56, 72}) {
    RunConfig other = resumed(config, folder.path(), 2);
    other.trainer.max_steps = 3;
    other.model.vocab_size = vocabulary;
    RunCheckpoints checkpoints(other, folder.path(), find_resume(other, folder.path()));
    testing_support::Watched watched(checkpoints);
    runtime::WorldOptions world;
    world.world_size = 2;
    const auto data = std::make_shared<trainer::testing_support::RandomTokens>(other);
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      trainer::Trainer trainer(other, rank, data, {nullptr, &watched});
      trainer.fit([](const trainer::StepResult&) {});
    });
    const at::Tensor got = watched.after(2).at("lm_head.weight"),
                     expected = saved.states.at(2).at("lm_head.weight");
    EXPECT_TRUE(got.narrow(0, 0, 56).equal(expected.narrow(0, 0, 56)));
    if (vocabulary == 72) {
      EXPECT_EQ(got.narrow(0, 64, 8).abs().max().item<double>(), 0);
    }
  }
}

std::vector<std::string> folders_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

RunConfig small_run(std::int64_t steps) {
  RunConfig config = config_of({{2, 1, 2, false, true}}, "mixed_precision", steps);
  config.exp_manager.checkpoints.every_n_train_steps = 2;
  return config;
}

/// One start of Python opens the files of both forms.
TEST(Files, AreNxDsAndOpenWithTorchLoad) {
  const TemporaryDirectory folder;
  std::map<std::string, TrainingRun> runs;
  for (const bool xser : {false, true}) {
    const std::string form = xser ? "xser" : "plain", place = folder.path() / form;
    RunConfig config = small_run(2);
    config.exp_manager.checkpoints.save_xser = xser;
    runs[form] = train(config, place);
    const fs::path tag = checkpoint_of(config, place, 2);
    for (const char* file :
         {"checkpoint", "done", "user_content.pt", "model/dp_rank_00_tp_rank_01_pp_rank_00.pt",
          "optim/dp_rank_01_tp_rank_01_pp_rank_00.pt"})
      EXPECT_TRUE(fs::exists(tag / file)) << file;
    EXPECT_EQ(fs::exists(tag / "optim/dp_rank_01_tp_rank_01_pp_rank_00.pt.tensors/tensor_0.pt"),
              xser);
    fs::remove_all(place + "/m--step=2-consumed_samples=16.0-last.ckpt");
    RunConfig longer = resumed(config, place, 2);
    longer.trainer.max_steps = 3;
    EXPECT_EQ(train(longer, place).losses.size(), 1U);
  }
  const auto sums = trainer::testing_support::read_oracle("trainer/checkpoint/torch_load.py " +
                                                          folder.path().string());
  for (const auto& [form, run] : runs) {
    const std::string tag = form + "/m--step=2-consumed_samples=16.0.ckpt/";
    EXPECT_EQ(sums.at(tag + "user_content"), (std::vector<double>{2, 16, 2}));
    double total = 0, expected = 0;
    for (const auto& [path, values] : sums) {
      if (path.starts_with(tag + "model/") && values.size() == 1) total += values[0];
    }
    for (const auto& [key, tensor] : run.states.at(2)) {
      if (key.starts_with(kStatePrefix)) continue;
      const bool replicated = tensor.dim() == 1 && !key.ends_with(".bias");
      expected += tensor.to(at::kDouble).sum().item<double>() * (replicated ? 2 : 1);
    }
    EXPECT_NEAR(total, expected, 1e-6) << form;
  }
  EXPECT_TRUE(
      sums.contains("plain/m--step=2-consumed_samples=16.0.ckpt/"
                    "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt/sharded_master_weights/0"));
}

TEST(Lifecycle, KeepsTheNewestAndTheLast) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(5);
  config.exp_manager.checkpoints.save_top_k = 1;
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  config.exp_manager.checkpoints.save_last = true;
  for (const bool async : {false, true}) {
    config.exp_manager.checkpoints.async = async;
    (void)train(config, folder.path());
    // The second run saves a checkpoint of the same name, next to which the first one stays until
    // the new one is complete.
    EXPECT_THAT(folders_in(folder.path()),
                testing::ElementsAre("m--step=5-consumed_samples=40.0-last.ckpt",
                                     std::string("m--step=5-consumed_samples=40.0") +
                                         (async ? "-v1.ckpt" : ".ckpt")));
  }
}

TEST(Lifecycle, AFullDiskCostsOneCheckpoint) {
  RunConfig config = small_run(3);
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  const std::string name = "step=2-consumed_samples=16.0.ckpt";
  for (const auto& [full, async] :
       std::vector<std::pair<std::string, bool>>{{name + "-unfinished", false},
                                                 {name + "/optim", false},
                                                 {name + "/optim", true},
                                                 {name + "/manifest.json", true}}) {
    const TemporaryDirectory folder;
    config.exp_manager.checkpoints.async = async;
    const TrainingRun run = train(config, folder.path(), [&](RunCheckpoints& checkpoints) {
      checkpoints.storage().faults().set_hook([&](const FaultPoint& point) {
        if (point.kind == FaultPoint::Kind::kWrite && point.path.find(full) != std::string::npos)
          throw OutputError(point.path, ENOSPC);
      });
    });
    EXPECT_EQ(run.losses.size(), 3U);
    EXPECT_THAT(folders_in(folder.path()),
                testing::ElementsAre("m--step=1-consumed_samples=8.0.ckpt",
                                     "m--step=3-consumed_samples=24.0-last.ckpt",
                                     "m--step=3-consumed_samples=24.0.ckpt"))
        << full;
  }
}

TEST(Lifecycle, AFullDiskAtTheEndIsAnError) {
  const TemporaryDirectory folder;
  EXPECT_THAT(
      [&] {
        (void)train(small_run(2), folder.path(), [](RunCheckpoints& checkpoints) {
          checkpoints.storage().faults().set_hook([](const FaultPoint& point) {
            if (point.path.find("-last") != std::string::npos)
              throw OutputError(point.path, ENOSPC);
          });
        });
      },
      testing::ThrowsMessage<Error>(HasSubstr("the last checkpoint was not saved")));
}

/// Resident memory of the process, bytes.
std::int64_t resident() {
  std::int64_t pages = 0, in_memory = 0;
  std::ifstream("/proc/self/statm") >> pages >> in_memory;
  return in_memory * sysconf(_SC_PAGESIZE);
}

TEST(Lifecycle, FiftySavesLeaveNothingInMemory) {
  constexpr std::int64_t kSettled = 10, kSaves = 60;
  RunConfig config = config_of({{1, 1, 1}}, "fp32", kSaves);
  config.model.hidden_size = 128;
  config.model.ffn_hidden_size = 256;
  config.data.global_batch_size = 1;
  config.exp_manager.checkpoints.save_top_k = 1;
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  for (const bool async : {false, true}) {
    const TemporaryDirectory folder;
    config.exp_manager.checkpoints.async = async;
    RunCheckpoints checkpoints(config, folder.path(), std::nullopt);
    const auto data = std::make_shared<trainer::testing_support::RandomTokens>(config);
    std::map<std::int64_t, std::int64_t> bytes;
    runtime::run_ranks({}, [&](runtime::RankContext& rank) {
      trainer::Trainer trainer(config, rank, data, {nullptr, &checkpoints});
      trainer.fit([&](const trainer::StepResult& step) { bytes[step.step] = resident(); });
    });
    std::int64_t saved = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      if (entry.is_regular_file()) saved += static_cast<std::int64_t>(entry.file_size());
    ASSERT_GT(saved, 1 << 20);
    // A leak of one save in ten would exceed it.
    EXPECT_LT(bytes.at(kSaves) - bytes.at(kSettled), 5 * saved) << (async ? "async" : "sync");
  }
}

TEST(Lifecycle, TheEndIsAlwaysSavedAndResumesIfItExists) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(3);
  config.exp_manager.checkpoints.resume_if_exists = true;
  EXPECT_THAT([&] { (void)find_resume(config, folder.path()); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("has no complete checkpoint")));
  config.exp_manager.checkpoints.resume_ignore_no_checkpoint = true;
  const TrainingRun first = train(config, folder.path());
  EXPECT_EQ(first.losses.size(), 3U);
  config.trainer.max_steps = 5;
  const TrainingRun second = train(config, folder.path());
  EXPECT_EQ(second.losses.begin()->first, 4) << "from the -last of step 3, not from step 2";
  EXPECT_EQ(train(config, folder.path()).losses.size(), 0U) << "it had ended";
}

TEST(Lifecycle, AsynchronousSavesHoldTheStateAtTheirCall) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(4);
  config.exp_manager.checkpoints.async = true;
  const TrainingRun whole = train(config, folder.path());
  const TrainingRun cut = train(resumed(config, folder.path(), 2), folder.path());
  EXPECT_EQ(cut.losses.at(4), whole.losses.at(4));
  expect_bit_equal(cut.states.at(4), whole.states.at(4), 4);
}

TEST(Lifecycle, IncompleteCheckpointsAreNoneAndGo) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(4);
  (void)train(config, folder.path());
  const fs::path newest = folder.path() / "m--step=4-consumed_samples=32.0-last.ckpt";
  const fs::path before = folder.path() / "m--step=4-consumed_samples=32.0.ckpt";
  fs::remove(newest / "done");
  for (const fs::path& tag : {newest, before}) std::ofstream(tag.string() + "-unfinished") << "1";
  const fs::path foreign = folder.path() / "of_the_user";
  fs::create_directories(foreign);
  std::ofstream(foreign / "checkpoint") << "of TensorFlow";
  EXPECT_THAT([&] { (void)find_resume(resumed(config, folder.path(), 4), folder.path()); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("the checkpoint is incomplete")));
  config.exp_manager.checkpoints.resume_if_exists = true;
  EXPECT_EQ(find_resume(config, folder.path())->point.step, 2);
  const RunCheckpoints next(config, folder.path(), std::nullopt);
  EXPECT_THAT(folders_in(folder.path()),
              testing::ElementsAre("m--step=2-consumed_samples=16.0.ckpt", "of_the_user"))
      << "only what our marks name is removed";
}

TEST(Lifecycle, ClocksThatJumpChangeNothing) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(4);
  (void)train(config, folder.path());
  const fs::path older = folder.path() / "m--step=2-consumed_samples=16.0.ckpt";
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path())) {
    const bool is_older = entry.path().string().starts_with(older.string());
    fs::last_write_time(entry.path(), now + std::chrono::hours(is_older ? 90'000 : -90'000));
  }
  config.trainer.max_steps = 5;
  config.exp_manager.checkpoints.resume_if_exists = true;
  config.exp_manager.checkpoints.save_top_k = 1;
  config.exp_manager.checkpoints.every_n_train_steps = 5;
  EXPECT_EQ(find_resume(config, folder.path())->point.step, 4);
  (void)train(config, folder.path());
  EXPECT_FALSE(fs::exists(older)) << "retention goes by what was saved last";
  EXPECT_EQ(CheckpointFolder(open_storage(folder.path())).newest()->step, 5);
}

TEST(Lifecycle, FoldersOfTheSameNameAreNotOverwritten) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(2);
  config.exp_manager.checkpoints.filename = "m";
  const fs::path foreign = folder.path() / "m-last.ckpt";
  fs::create_directories(foreign);
  std::ofstream(foreign / "notes.txt") << "of the user";
  (void)train(config, folder.path());
  EXPECT_TRUE(fs::exists(foreign / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder.path() / "m-v1-last.ckpt" / "done"));
}

/// Every change of a save, and of the removal of an older checkpoint, as the last one of a process.
void stop_at_every_change(const std::string& filename, bool drops_states = false) {
  RunConfig config = config_of({{1, 1, 2, false, true}}, "fp32", 3);
  config.model.num_layers = 1;
  config.data.global_batch_size = 2;  // one for each rank: each change is a training
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  config.exp_manager.checkpoints.save_top_k = drops_states ? 2 : 1;
  if (drops_states) config.exp_manager.checkpoints.save_last_n_optim_states = 1;
  config.exp_manager.checkpoints.zero1_dcp = drops_states;
  config.exp_manager.checkpoints.filename = filename;
  config.exp_manager.checkpoints.resume_if_exists = true;
  config.exp_manager.checkpoints.resume_ignore_no_checkpoint = true;
  const TemporaryDirectory complete;
  const TrainingRun whole = train(config, complete.path());
  bool stopped = true;
  for (std::int64_t last = 1; stopped; ++last) {
    const TemporaryDirectory folder;
    std::int64_t saved = 0;  // steps that were done, except for the removal of their marker
    stopped = false;
    try {
      (void)train(config, folder.path(), [&](RunCheckpoints& checkpoints) {
        checkpoints.storage().faults().set_hook([&](const FaultPoint& point) {
          if (point.number >= last) stopped = true;
          if (point.number >= last) throw StorageStopped();
          const bool is_done =
              point.kind == FaultPoint::Kind::kDelete && point.path.ends_with("-unfinished");
          saved += is_done ? 1 : 0;
        });
      });
    } catch (const std::exception&) {
      EXPECT_TRUE(stopped);
    }
    const CheckpointFolder left(open_storage(folder.path()));
    const std::int64_t step = left.newest() ? left.newest()->step : 0;
    EXPECT_GE(step, std::min<std::int64_t>(saved, 3) - 1) << "change " << last;
    const TrainingRun rest = train(config, folder.path());
    if (step < 3) {
      EXPECT_EQ(rest.losses.at(3), whole.losses.at(3)) << "change " << last;
    }
    for (const std::string& name : folders_in(folder.path()))
      EXPECT_TRUE(fs::exists(folder.path() / name / "done")) << name << ", change " << last;
  }
}

TEST(Lifecycle, AStopAtAnyChangeLeavesTheLastCompleteCheckpoint) {
  stop_at_every_change("m--{step}");
}

TEST(Lifecycle, AStopAtAnyChangeLeavesTheLastCompleteCheckpointOfOneName) {
  stop_at_every_change("m");
}

TEST(Lifecycle, AStopAtAnyChangeOfStatesInDcpAndOfTheirRemovalLeavesTheLastCompleteOne) {
  stop_at_every_change("m--{step}-{consumed_samples}", /*drops_states=*/true);
}

TEST(Lifecycle, StepsTimeAndEpochsTrigger) {
  const auto saved = [](const std::function<void(RunConfig&)>& change) {
    const TemporaryDirectory folder;
    RunConfig config = config_of({}, "fp32", 5);
    config.exp_manager.checkpoints.filename = "{step}";
    config.exp_manager.checkpoints.auto_insert_metric_name = false;
    config.exp_manager.checkpoints.every_n_epochs = 0;
    change(config);
    (void)train(config, folder.path());
    return folders_in(folder.path());
  };
  using testing::ElementsAre;
  EXPECT_THAT(saved([](auto& c) { c.exp_manager.checkpoints.every_n_train_steps = 2; }),
              ElementsAre("2.ckpt", "4.ckpt", "5-last.ckpt"));
  EXPECT_THAT(saved([](auto& c) { c.exp_manager.checkpoints.train_time_interval_s = 1e-9; }),
              ElementsAre("1.ckpt", "2.ckpt", "3.ckpt", "4.ckpt", "5-last.ckpt", "5.ckpt"));
  EXPECT_THAT(saved([](auto& c) { c.exp_manager.checkpoints.train_time_interval_s = 1e9; }),
              ElementsAre("5-last.ckpt"));
  EXPECT_THAT(saved([](auto& c) {
                c.exp_manager.checkpoints.every_n_epochs = 2;
                c.trainer.limit_train_batches = trainer::BatchCount{2, {}};
              }),
              ElementsAre("4.ckpt", "5-last.ckpt"));
  EXPECT_THAT(saved([](auto& c) {
                c.exp_manager.checkpoints.every_n_train_steps = 1;
                c.exp_manager.checkpoints.monitor = "lr";
                c.exp_manager.checkpoints.save_top_k = 2;
              }),
              ElementsAre("4.ckpt", "5-last.ckpt", "5.ckpt"))
      << "the learning rate rises for four steps: the largest two";
}

TEST(Lifecycle, EarlyStoppingGoesOnCounting) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(9);
  config.exp_manager.early_stopping = trainer::EarlyStoppingSection{
      .monitor = "reduced_train_loss", .min_delta = 100, .patience = 4};
  EXPECT_EQ(train(config, folder.path()).losses.rbegin()->first, 5);
  EXPECT_EQ(train(resumed(config, folder.path(), 2), folder.path()).losses.rbegin()->first, 5);
}

TEST(Lifecycle, AFlippedByteIsNamed) {
  const TemporaryDirectory folder;
  const RunConfig config = small_run(2);
  (void)train(config, folder.path());
  const fs::path file = folder.path() / "m--step=2-consumed_samples=16.0.ckpt" /
                        "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt";
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(fs::file_size(file) / 2));
    const int byte = stream.peek();
    stream.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
    stream.put(static_cast<char>(byte ^ 1));
  }
  EXPECT_THAT([&] { (void)train(resumed(config, folder.path(), 2), folder.path()); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(HasSubstr("optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"),
                                 HasSubstr("its content is not what was saved"))));
}

TEST(Lifecycle, WeightInitOnlyStartsANewTraining) {
  const TemporaryDirectory folder;
  const RunConfig config = small_run(2);
  const TrainingRun saved = train(config, folder.path());
  RunConfig tuned = resumed(config, folder.path(), 2);
  tuned.model.weight_init_only = true;
  tuned.model.optim.lr = 0;
  tuned.model.optim.sched.reset();
  tuned.trainer.max_steps = 1;
  const TrainingRun run = train(tuned, folder.path());
  EXPECT_EQ(run.losses.begin()->first, 1);
  for (const auto& [key, tensor] : saved.states.at(2)) {
    if (key.starts_with(kStatePrefix)) continue;
    EXPECT_TRUE(run.states.at(1).at(key).equal(tensor)) << key;
  }
}

TEST(Lifecycle, AnotherModelsCheckpointIsNamedByItsWeights) {
  const TemporaryDirectory folder;
  const RunConfig config = small_run(2);
  (void)train(config, folder.path());
  RunConfig wider = resumed(config, folder.path(), 2);
  wider.model.ffn_hidden_size = 64;
  EXPECT_THAT([&] { (void)train(wider, folder.path()); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("gate_proj.weight has the shape")));
  RunConfig deeper = resumed(config, folder.path(), 2);
  deeper.model.num_layers = 6;
  EXPECT_THAT([&] { (void)train(deeper, folder.path()); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("has no model.layers.5.")));
}

}  // namespace
}  // namespace trellis::checkpoint::training_test
