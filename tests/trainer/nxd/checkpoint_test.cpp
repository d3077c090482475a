// NxD's save_checkpoint and load_checkpoint, and its older interface: each argument acts.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/output_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_training.h"
#include "trainer/checkpoint/engine/rank_state_file.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/nxd/checkpoint/legacy_checkpoints.h"
#include "trainer/nxd/checkpoint/nxd_checkpoints.h"

namespace trellis::trainer::checkpoint_test {
namespace {

using namespace testing_support;
using checkpoint::Value;
using checkpoint::native::TensorDict;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

TEST(SaveCheckpoint, EveryLayoutGoesOnWithTheSameNumbers) {
  const TemporaryDirectory folder;
  const Value content = Value::dict({{"epoch", Value(3)}, {"names", Value::list({Value("a")})}});
  std::vector<double> whole;
  std::mutex mutex;
  run({.tp = 2, .pp = 2, .dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    LrScheduler scheduler(
        {.name = "adamw", .lr = 1e-2, .sched = SchedSection{.name = "ReduceLROnPlateau"}}, 9);
    scheduler.end_epoch(0.5);
    for (int step = 0; step < 5; ++step) {
      if (step == 3)
        saved.save_checkpoint(training.rank, {.model = training.model.get(),
                                              .optimizer = training.optimizer.get(),
                                              .scheduler = &scheduler,
                                              .user_content = content});
      const double loss = training.step();
      if (training.rank.rank() == 0) whole.push_back(loss);
    }
  });
  for (const char* file :
       {"checkpoint", "done", "scheduler.pt", "user_content.pt",
        "model/dp_rank_00_tp_rank_01_pp_rank_01.pt", "optim/dp_rank_01_tp_rank_01_pp_rank_01.pt"})
    EXPECT_TRUE(fs::exists(folder.path() / "step_3" / file)) << file;
  for (const Layout& layout :
       {Layout{}, Layout{.tp = 2, .dp = 2, .zero1 = false}, Layout{.pp = 4}}) {
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      training.spoil();
      LrScheduler scheduler({.name = "adamw", .lr = 1e-2}, 9);
      const LoadedCheckpoint loaded =
          saved.load_checkpoint(training.rank, {.model = training.model.get(),
                                                .optimizer = training.optimizer.get(),
                                                .scheduler = &scheduler});
      const std::scoped_lock lock(mutex);
      EXPECT_EQ(loaded.tag, "step_3");
      EXPECT_EQ(loaded.user_content, content);
      EXPECT_EQ(scheduler.state().best, 0.5);
      EXPECT_EQ(training.optimizer->steps(), 3);
    });
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      saved.load_checkpoint(training.rank,
                            {.model = training.model.get(), .optimizer = training.optimizer.get()});
      for (std::size_t step = 3; step < 5; ++step) EXPECT_NEAR(training.step(), whole[step], 1e-12);
    });
  }
}

TEST(SaveCheckpoint, XserIsAFilePerTensor) {
  const TemporaryDirectory folder;
  run({.tp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    saved.save_checkpoint(training.rank,
                          {.tag = "x", .model = training.model.get(), .use_xser = true});
    const TensorDict before = training.weights();
    training.spoil();
    saved.load_checkpoint(training.rank, {.tag = "x", .model = training.model.get()});
    expect_equal(training.weights(), before);
  });
  const fs::path file = folder.path() / "x/model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  EXPECT_TRUE(fs::exists(file.string() + ".tensors/tensor_0.pt"));
  EXPECT_TRUE(fs::exists(file.string() + ".info.pt"));
  EXPECT_FALSE(fs::exists(folder.path() / "x/optim")) << "no optimizer was given";
}

TEST(SaveCheckpoint, NumWorkersIsHowManyWriteAtTheSameTime) {
  for (const int workers : {1, 2}) {
    const TemporaryDirectory folder;
    std::set<std::string> open;
    std::size_t most = 0;
    run({.tp = 2, .dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      if (training.rank.rank() == 0)
        saved.storage().faults().set_hook([&](const checkpoint::FaultPoint& point) {
          if (point.path.find("_rank_") == std::string::npos) return;
          if (point.kind == checkpoint::FaultPoint::Kind::kWrite) open.insert(point.path);
          most = std::max(most, open.size());
          if (point.kind == checkpoint::FaultPoint::Kind::kRename) open.erase(point.path);
        });
      training.rank.host_barrier();
      for (int save = 0; save < 5; ++save)
        saved.save_checkpoint(training.rank, {.tag = "x" + std::to_string(save),
                                              .model = training.model.get(),
                                              .optimizer = training.optimizer.get(),
                                              .num_workers = workers});
    });
    EXPECT_TRUE(open.empty());
    EXPECT_GE(most, 1U);
    EXPECT_LE(most, static_cast<std::size_t>(workers));
  }
}

TEST(SaveCheckpoint, AsyncSaveIsOfItsCallAndHoldsTheStateOfIt) {
  const TemporaryDirectory folder;
  run({.dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    const TensorDict first = training.weights();
    saved.save_checkpoint(training.rank,
                          {.tag = "a", .model = training.model.get(), .async_save = true});
    // Without another call: NxD's own writes the mark at its next save only.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!fs::exists(folder.path() / "a/done") && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(fs::exists(folder.path() / "a/done"));
    training.step();
    const TensorDict second = training.weights();
    saved.save_checkpoint(training.rank, {.tag = "b", .model = training.model.get()});
    EXPECT_TRUE(fs::exists(folder.path() / "b/done")) << "a synchronous one is complete at once";
    EXPECT_TRUE(fs::exists(folder.path() / "a/done")) << "and waits for the one before";
    saved.load_checkpoint(training.rank, {.tag = "a", .model = training.model.get()});
    expect_equal(training.weights(), first);
    saved.load_checkpoint(training.rank, {.model = training.model.get()});
    expect_equal(training.weights(), second);
    saved.save_checkpoint(training.rank,
                          {.tag = "c", .model = training.model.get(), .async_save = true});
    saved.finalize_checkpoint(training.rank);
    EXPECT_TRUE(fs::exists(folder.path() / "c/done"));
  });
}

TEST(SaveCheckpoint, TheNewestNumKeptStayAndRemaindersGo) {
  const TemporaryDirectory folder;
  run({.dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    EXPECT_FALSE(saved.has_checkpoint(training.rank));
    for (const char* tag : {"a", "b", "b", "c", "d"})
      saved.save_checkpoint(training.rank,
                            {.tag = tag, .model = training.model.get(), .num_kept_ckpts = 2});
    EXPECT_TRUE(saved.has_checkpoint(training.rank));
  });
  EXPECT_THAT(tags_in(folder.path()), ElementsAre("c", "d"));
  fs::create_directories(folder.path() / "half/model");
  std::ofstream(folder.path() / "half-unfinished") << "1";
  fs::create_directories(folder.path() / "notes");
  run({}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    saved.save_checkpoint(training.rank, {.tag = "e", .model = training.model.get()});
  });
  EXPECT_THAT(tags_in(folder.path()), ElementsAre("c", "d", "e", "notes")) << "all are kept";
}

TEST(SaveCheckpoint, MastersTakeThePlaceOfWeights) {
  for (const bool xser : {false, true}) {
    const TemporaryDirectory folder;
    const Layout layout{.tp = 2, .dp = 2, .dtype = at::kBFloat16};
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      training.step();
      const SaveCheckpointArguments all{.tag = "all",
                                        .model = training.model.get(),
                                        .optimizer = training.optimizer.get(),
                                        .use_xser = xser};
      saved.save_checkpoint(training.rank, all);
      SaveCheckpointArguments masters = all;
      masters.tag = "masters";
      masters.avoid_saving_lower_precision_weights = true;
      saved.save_checkpoint(training.rank, masters);
      const TensorDict before = training.weights();
      const double loss = training.step();
      training.spoil();
      saved.load_checkpoint(
          training.rank,
          {.tag = "masters", .model = training.model.get(), .optimizer = training.optimizer.get()});
      expect_equal(training.weights(), before);
      EXPECT_EQ(training.step(), loss);
    });
    const auto storage = checkpoint::open_storage(folder.path().string());
    const std::string file = "model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
    const checkpoint::native::RankStateFile without({storage, "masters"}, file),
        with({storage, "all"}, file);
    EXPECT_EQ(without.root().as_dict().size(), with.root().as_dict().size())
        << "the structure stays";
    EXPECT_FALSE(fs::exists(folder.path() / "masters" / (file + ".tensors/tensor_0.pt")));
    if (!xser) {
      EXPECT_THAT(without.tensors(without.root()), testing::SizeIs(1)) << "a buffer has no master";
    }
  }
}

TEST(SaveCheckpoint, MastersAreSavedWhenTheConfigurationSaysSo) {
  for (const bool in_ckpt : {false, true}) {
    const TemporaryDirectory folder;
    const Layout layout{.dp = 2, .dtype = at::kBFloat16, .masters_in_ckpt = in_ckpt};
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      saved.save_checkpoint(training.rank,
                            {.model = training.model.get(), .optimizer = training.optimizer.get()});
      saved.load_checkpoint(training.rank,
                            {.model = training.model.get(), .optimizer = training.optimizer.get()});
    });
    const checkpoint::native::RankStateFile file(
        {checkpoint::open_storage(folder.path().string()), "step_0"},
        "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt");
    EXPECT_EQ(file.root().find("sharded_master_weights") != nullptr, in_ckpt);
  }
}

TEST(SaveCheckpoint, DictsAreOfTheirRank) {
  for (const bool zero1 : {false, true}) {
    const TemporaryDirectory folder;
    run({.tp = 2, .dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      const int tag = zero1 ? training.rank.rank() : training.rank.rank() % 2;
      const auto filled = [&](int scale) { return at::full({2, 3}, tag * scale, at::kFloat); };
      TensorDict model{{"w", filled(1)}}, optimizer{{"m", filled(10)}};
      saved.save_checkpoint(training.rank, {.tag = "x",
                                            .model_dict = &model,
                                            .optimizer_dict = &optimizer,
                                            .parallel = &training.model->parallel(),
                                            .use_xser = zero1,
                                            .zero1_optimizer = zero1});
      TensorDict got{{"m", at::zeros({2, 3})}};
      saved.load_checkpoint(training.rank,
                            {.optimizer_dict = &got, .parallel = &training.model->parallel()});
      expect_equal(got, optimizer);
      TensorDict other{{"n", at::zeros({2, 3})}};
      if (!zero1) return;
      EXPECT_THROW(saved.load_checkpoint(training.rank, {.model_dict = &other,
                                                         .parallel = &training.model->parallel()}),
                   ConfigError);
    });
    EXPECT_EQ(fs::exists(folder.path() / "x/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"), zero1);
  }
}

/// The error that each rank of a call throws; "": none.
std::vector<std::string> thrown_by_ranks(
    const Layout& layout, const fs::path& folder,
    const std::function<void(Training&, NxDCheckpoints&)>& call) {
  std::vector<std::string> thrown(static_cast<std::size_t>(layout.ranks()));
  run(layout, folder, [&](Training& training, NxDCheckpoints& saved) {
    saved.save_checkpoint(training.rank, {.tag = "a", .model = training.model.get()});
    for (int again = 0; again < 2; ++again) {
      try {
        call(training, saved);
      } catch (const ConfigError& error) {
        thrown[static_cast<std::size_t>(training.rank.rank())] = error.what();
      }
    }
    // Who catches it goes on, together with the others.
    const std::string tag =
        saved.load_checkpoint(training.rank, {.model = training.model.get()}).tag;
    EXPECT_EQ(tag, "a");
    training.step();
  });
  return thrown;
}

TEST(SaveCheckpoint, WhatOneRankThrowsAllThrow) {
  const Layout layout{.tp = 2, .dp = 2};
  const auto check = [&](const char* expected,
                         const std::function<void(Training&, NxDCheckpoints&)>& call) {
    const TemporaryDirectory folder;
    for (const std::string& text : thrown_by_ranks(layout, folder.path(), call))
      EXPECT_THAT(text, testing::AllOf(HasSubstr(expected), HasSubstr("raised by rank 2")));
  };
  check("num_workers", [](Training& training, NxDCheckpoints& saved) {
    const int workers = training.rank.rank() == 2 ? 0 : 8;
    saved.save_checkpoint(training.rank,
                          {.tag = "b", .model = training.model.get(), .num_workers = workers});
  });
  check("model_dict", [](Training& training, NxDCheckpoints& saved) {
    TensorDict dict;
    saved.save_checkpoint(training.rank,
                          {.tag = "b",
                           .model = training.model.get(),
                           .model_dict = training.rank.rank() == 2 ? &dict : nullptr});
  });
  check("no such name", [](Training& training, NxDCheckpoints& saved) {
    TensorDict wanted = training.weights();
    if (training.rank.rank() == 2) {
      wanted.clear();
      wanted["no such name"] = at::zeros({2});
    }
    saved.load_checkpoint(training.rank,
                          {.model_dict = &wanted, .parallel = &training.model->parallel()});
  });
}

TEST(SaveCheckpoint, AFolderWithoutACheckpointIsAnErrorOfAllRanks) {
  const TemporaryDirectory folder;
  run({.dp = 4}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    EXPECT_THROW(saved.load_checkpoint(training.rank, {.model = training.model.get()}),
                 ConfigError);
    saved.save_checkpoint(training.rank, {.tag = "a", .model = training.model.get()});
    EXPECT_TRUE(saved.has_checkpoint(training.rank));
  });
}

TEST(SaveCheckpoint, WhatCannotBeWrittenIsAnErrorAndTheLastOneStays) {
  const TemporaryDirectory folder;
  EXPECT_THAT(error_of([&] {
                run({.dp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
                  saved.save_checkpoint(training.rank, {.tag = "a", .model = training.model.get()});
                  if (training.rank.rank() == 0)
                    saved.storage().faults().set_hook([](const checkpoint::FaultPoint& point) {
                      if (point.path.find("b/model") == 0) throw OutputError("no space left");
                    });
                  training.rank.host_barrier();
                  saved.save_checkpoint(training.rank, {.tag = "b", .model = training.model.get()});
                });
              }),
              HasSubstr("/b: the checkpoint is not saved: no space left"));
  EXPECT_THAT(tags_in(folder.path()), ElementsAre("a"));
}

TEST(LoadCheckpoint, StrictNamesWhatOnlyOneSideHas) {
  const TemporaryDirectory folder;
  const auto storage = checkpoint::open_storage(folder.path().string());
  run({.pp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    saved.save_checkpoint(training.rank, {.tag = "x", .model = training.model.get()});
  });
  checkpoint::native::Manifest manifest = checkpoint::native::read_manifest(*storage, "x");
  for (auto& tensor : manifest.tensors) {
    for (auto& part : tensor.parts) {
      if (part.key.starts_with("block.3.up")) part.key[6] = '9';
    }
  }
  storage->write_text("x/manifest.json", manifest.to_json());
  EXPECT_THAT(error_of([&] {
                run({.pp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
                  saved.load_checkpoint(training.rank, {.model = training.model.get()});
                });
              }),
              testing::AllOf(HasSubstr("has no block.3.up.weight"),
                             HasSubstr("no rank asks for block.9.up.weight")));
  run({.pp = 2}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    training.spoil();
    const LoadedCheckpoint loaded =
        saved.load_checkpoint(training.rank, {.model = training.model.get(), .strict = false});
    EXPECT_THAT(loaded.missing_keys, ElementsAre("block.3.up.bias", "block.3.up.weight"));
    EXPECT_THAT(loaded.unexpected_keys, ElementsAre("block.9.up.bias", "block.9.up.weight"));
    for (const auto& [name, tensor] : training.model->state_dict())
      EXPECT_EQ(tensor.eq(7).all().item<bool>(), name.starts_with("block.3.up")) << name;
  });
}

TEST(LoadCheckpoint, MissingMomentsAreAnErrorWithoutStrictToo) {
  const TemporaryDirectory folder;
  EXPECT_THAT(error_of([&] {
                run({}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
                  saved.save_checkpoint(training.rank, {.tag = "x", .model = training.model.get()});
                  saved.load_checkpoint(training.rank, {.model = training.model.get(),
                                                        .optimizer = training.optimizer.get(),
                                                        .strict = false});
                });
              }),
              HasSubstr("has no optimizer.state.exp_avg.block.0.down.bias"));
}

TEST(SaveCheckpoint, ArgumentsThatCannotBeAreNamedTogether) {
  const TemporaryDirectory folder;
  run({}, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    const std::string text = error_of([&] {
      saved.save_checkpoint(training.rank, {.model = training.model.get(),
                                            .num_workers = 33,
                                            .num_kept_ckpts = 0,
                                            .zero1_optimizer = true,
                                            .avoid_saving_lower_precision_weights = true,
                                            .use_zero1_dcp = true});
    });
    for (const char* part : {"async_save too", "without avoid_saving_lower_precision_weights",
                             "an optimizer with optimizer_config.zero_one_enabled"})
      EXPECT_THAT(text, HasSubstr(std::string("use_zero1_dcp: expected ") + part));
    for (const char* part :
         {"num_workers: expected 1 to 32, got 33", "num_kept_ckpts: expected -1",
          "zero1_optimizer: expected with optimizer_dict",
          "avoid_saving_lower_precision_weights: expected an optimizer", "tag: expected a name"})
      EXPECT_THAT(text, HasSubstr(part));
    EXPECT_THAT(error_of([&] {
                  saved.load_checkpoint(training.rank, {.num_workers = 0, .use_zero1_dcp = true});
                }),
                testing::AllOf(HasSubstr("num_workers"), HasSubstr("use_zero1_dcp")));
    EXPECT_THAT(error_of([&] { saved.load_checkpoint(training.rank, {}); }),
                HasSubstr("expected a complete checkpoint, found none"));
    saved.save_checkpoint(training.rank,
                          {.model = training.model.get(), .optimizer = training.optimizer.get()});
    EXPECT_THAT(error_of([&] {
                  saved.load_checkpoint(training.rank, {.model = training.model.get(),
                                                        .optimizer = training.optimizer.get(),
                                                        .use_zero1_dcp = true});
                }),
                HasSubstr("expected states in a folder of DCP, found files by rank"));
  });
}

/// Names of files that are being written at the same time.
class OpenFiles {
 public:
  explicit OpenFiles(checkpoint::Storage& storage) {
    storage.faults().set_hook([this](const checkpoint::FaultPoint& point) {
      if (point.kind == checkpoint::FaultPoint::Kind::kWrite) open_.insert(point.path);
      most_ = std::max(most_, open_.size());
      if (point.kind == checkpoint::FaultPoint::Kind::kRename) open_.erase(point.path);
    });
  }
  [[nodiscard]] std::size_t most() const { return most_; }

 private:
  std::set<std::string> open_;
  std::size_t most_ = 0;
};

TEST(LegacySave, FilesPerRankComeBack) {
  for (const bool xser : {false, true}) {
    const TemporaryDirectory folder;
    const auto storage = checkpoint::open_storage(folder.path().string());
    OpenFiles open(*storage);
    run({.tp = 2, .dp = 2}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
      const ParallelState& parallel = training.model->parallel();
      const TensorDict before = training.weights();
      legacy::save(training.rank, parallel, {{{"model", before}}, {{"step", Value(4)}}}, *storage,
                   {.save_xser = xser});
      training.spoil();
      const legacy::Checkpoint loaded = legacy::load(
          training.rank, parallel, storage, {.model = training.model.get(), .load_xser = xser});
      expect_equal(training.weights(), before);
      EXPECT_EQ(loaded.values.at("step").as_int(), 4);
      if (training.rank.rank() != 0) return;
      EXPECT_THAT(error_of([&] {
                    (void)legacy::load(training.rank, parallel, storage, {.load_xser = !xser});
                  }),
                  HasSubstr(xser ? "load_xser true" : "load_xser false"));
    });
    EXPECT_EQ(open.most(), 1U) << "save_serially";
    EXPECT_TRUE(fs::exists(folder.path() / (xser ? "tp_rank_01_pp_rank_00.tensors/tensor_0.pt"
                                                 : "tp_rank_01_pp_rank_00/checkpoint.pt")));
    EXPECT_FALSE(fs::exists(folder.path() / "tp_rank_00_pp_rank_00_dp_rank_00"));
  }
}

TEST(LegacySave, DownCastsAndWritesEveryDataParallelRankOnRequest) {
  const TemporaryDirectory folder;
  const auto storage = checkpoint::open_storage(folder.path().string());
  run({.dp = 2}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
    const ParallelState& parallel = training.model->parallel();
    const TensorDict own{{"w", at::full({3}, 1.0 / 3 + training.rank.rank(), at::kDouble)},
                         {"n", at::full({3}, 5, at::kLong)}};
    legacy::save(training.rank, parallel, {{{"model", own}}}, *storage,
                 {.save_serially = false, .down_cast_bf16 = true, .master_dp_only = false});
    const legacy::Checkpoint loaded =
        legacy::load(training.rank, parallel, storage, {.master_dp_only = false});
    EXPECT_TRUE(loaded.states.at("model").at("w").equal(own.at("w").to(at::kBFloat16)));
    EXPECT_TRUE(loaded.states.at("model").at("n").equal(own.at("n")));
  });
}

TensorDict zeros_of(const TensorDict& like) {
  TensorDict zeros;
  for (const auto& [name, tensor] : like) zeros[name] = at::zeros_like(tensor);
  return zeros;
}

TEST(LegacyLoad, OneFileOfWholeWeightsIsSliced) {
  const TemporaryDirectory folder;
  const auto storage = checkpoint::open_storage(folder.path().string());
  TensorDict whole;
  run({}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
    whole = training.weights();
    for (auto& [name, tensor] : whole) tensor = at::rand_like(tensor);
    const auto jobs = checkpoint::native::dict_jobs(
        "checkpoint.pt", {{"model", whole}, {"other", zeros_of(whole)}}, {}, {0}, {});
    (void)checkpoint::native::write_job(*storage, "", jobs.front());
  });
  for (const Layout& layout : {Layout{.tp = 2, .pp = 2}, Layout{.tp = 4}}) {
    run(layout, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
      const ParallelState& parallel = training.model->parallel();
      (void)legacy::load(training.rank, parallel, storage,
                         {.model = training.model.get(), .sharded = false});
      const int tp = layout.tp, tp_rank = parallel.get_tensor_model_parallel_rank();
      for (const Parameter& parameter : training.model->parameter_list()) {
        const at::Tensor& all = whole.at(parameter.name);
        const at::Tensor expected =
            parameter.tensor_model_parallel
                ? all.chunk(tp, parameter.partition_dim)[static_cast<std::size_t>(tp_rank)]
                : all;
        EXPECT_TRUE(parameter.tensor.equal(expected)) << parameter.name;
      }
      (void)legacy::load(training.rank, parallel, storage,
                         {.model = training.model.get(), .model_key = "other", .sharded = false});
      for (const at::Tensor& tensor : training.model->parameters())
        EXPECT_EQ(at::count_nonzero(tensor).item<std::int64_t>(), 0);
    });
  }
  EXPECT_THAT(error_of([&] {
                run({}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
                  (void)legacy::load(
                      training.rank, training.model->parallel(), storage,
                      {.model = training.model.get(), .model_key = "ema", .sharded = false});
                });
              }),
              HasSubstr("has no state dict 'ema'; name another model_key"));
  EXPECT_THAT(error_of([&] {
                run({}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
                  (void)legacy::load(training.rank, training.model->parallel(), storage,
                                     {.sharded = false});
                });
              }),
              HasSubstr("sharded false: expected a model"));
}

TEST(LegacySave, ShardedStatesOfAnOptimizerComeBack) {
  const TemporaryDirectory folder;
  const auto storage = checkpoint::open_storage(folder.path().string());
  run({.tp = 2, .dp = 2}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
    training.step();
    legacy::save_sharded_state_dict(training.rank, *training.model, *training.optimizer, *storage);
    const TensorDict weights = training.weights();
    std::vector<double> losses{training.step(), training.step()};
    training.model->load_state_dict(weights);
    legacy::load_sharded_state_dict(training.rank, *training.model, *training.optimizer, storage,
                                    /*num_workers_per_step=*/3);
    EXPECT_EQ(training.optimizer->steps(), 1);
    for (const double loss : losses) EXPECT_EQ(training.step(), loss);
  });
  EXPECT_TRUE(fs::exists(folder.path() / "optim.dp_rank_01.tp_rank_01"));
  EXPECT_THAT(error_of([&] {
                run({.pp = 2}, folder.path() / "unused", [&](Training& training, NxDCheckpoints&) {
                  legacy::save_sharded_state_dict(training.rank, *training.model,
                                                  *training.optimizer, *storage);
                });
              }),
              HasSubstr("expected pipeline_parallel_size 1"));
}

}  // namespace
}  // namespace trellis::trainer::checkpoint_test
