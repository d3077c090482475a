// Checkpoints that are written in another layout without a training.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/output_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/spread.h"
#include "trainer/checkpoint/engine/rank_state_file.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/checkpoint/training/write_native.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/files/checkpoint/conversion/compare.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/storage/fault_points.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint::layout_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::checkpoint_of;
using testing_support::config_of;
using testing_support::content;
using testing_support::files_of;
using testing_support::resumed_from;
using testing_support::Spread;
using testing_support::spreads;
using testing_support::train;
using testing_support::TrainingRun;
using testing_support::worst_difference;
using trainer::RunConfig;
namespace fs = std::filesystem;

constexpr std::int64_t kSave = 2, kSteps = 4;

RunConfig saving(const Spread& spread, std::int64_t every = kSave, std::int64_t steps = kSteps) {
  RunConfig config = config_of(spread, "fp64", steps);
  config.exp_manager.checkpoints.every_n_train_steps = every;
  config.exp_manager.checkpoints.every_n_epochs = 0;
  return config;
}

void reshard(const std::string& from, const std::string& to, const RunConfig& config,
             const NativeOptions& options = {}) {
  (void)write_native(*open_checkpoint(from), open_place(to), config, options, {});
}

std::vector<std::string> differences(const std::string& a, const std::string& b) {
  std::vector<std::string> names;
  const auto progress = [](std::int64_t, std::int64_t) {};
  for (const TensorDifference& each :
       compare(*open_checkpoint(a), *open_checkpoint(b), {}, progress).differences)
    names.push_back(each.key + ": " + name(each.kind));
  return names;
}

TEST(WriteNative, RandomPairsOfLayoutsGoOnAsTheUninterruptedRun) {
  const TemporaryDirectory folder;
  const auto folder_of = [&](const std::string& name) { return (folder.path() / name).string(); };
  std::map<std::size_t, TrainingRun> whole;
  std::mt19937 random(11);
  for (int pair = 0; pair < 30; ++pair) {
    const std::size_t from = random() % spreads().size(), to = random() % spreads().size();
    const RunConfig source = saving(spreads()[from]), target = saving(spreads()[to]);
    const std::string run = folder_of(std::to_string(from));
    if (!whole.contains(from)) whole[from] = train(source, run);
    const std::string saved = checkpoint_of(source, run, kSave);
    const std::string written = folder_of("pair" + std::to_string(pair));
    reshard(saved, written, target);
    EXPECT_THAT(differences(saved, written), ElementsAre()) << from << " to " << to;
    const TrainingRun got = train(resumed_from(target, written), folder_of("none"));
    ASSERT_EQ(got.losses.begin()->first, kSave + 1);
    EXPECT_LE(worst_difference(got.states.at(kSteps), whole.at(from).states.at(kSteps)), 1e-10)
        << from << " to " << to;
    fs::remove_all(written);
  }
}

/// Without our manifest the folder is one of NxD: what each tensor is follows from the
/// configuration.
TEST(OpenNxd, TheConfigurationSaysWhatTheManifestSaid) {
  for (const char* form : {"files by rank", "xser", "states in DCP"}) {
    const bool plain = form == std::string("files by rank");
    for (std::size_t i = 0; i < spreads().size(); i += plain ? 1 : 4) {
      SCOPED_TRACE(form);
      const TemporaryDirectory folder;
      RunConfig config = saving(spreads()[i], 1, 1);
      config.exp_manager.checkpoints.save_xser = form == std::string("xser");
      config.exp_manager.checkpoints.zero1_dcp = form == std::string("states in DCP");
      (void)train(config, folder.path());
      const std::string saved = checkpoint_of(config, folder.path(), 1);
      const auto ours = open_checkpoint(saved);
      const std::string without = (folder.path() / "without--step=1.ckpt").string();
      fs::copy(saved, without, fs::copy_options::recursive);
      fs::remove(fs::path(without) / "manifest.json");
      fs::remove(fs::path(without) / "user_content.pt");
      EXPECT_THROW((void)open_checkpoint(without), ConfigError);
      // Degrees and the padding of the vocabulary are those of the files.
      RunConfig other = config;
      other.trainer.devices = 1;
      other.distributed_strategy.tensor_model_parallel_size = 1;
      other.distributed_strategy.pipeline_model_parallel_size = 1;
      other.model.vocab_size += 16;
      const auto theirs = open_checkpoint(without, other);
      EXPECT_STREQ(theirs->format(), "nxd");
      EXPECT_EQ(theirs->tensors(), ours->tensors()) << i;
      const auto progress = [](std::int64_t, std::int64_t) {};
      EXPECT_TRUE(compare(*ours, *theirs, {}, progress).differences.empty()) << i;
    }
  }
}

/// A checkpoint that another program saved, as a training finds it: without our manifest.
std::string as_foreign(const std::string& saved) {
  const fs::path folder = fs::path(saved).parent_path() / "of_nxdt";
  const std::string copy = (folder / fs::path(saved).filename()).string();
  fs::create_directories(folder);
  fs::copy(saved, copy, fs::copy_options::recursive);
  fs::remove(fs::path(copy) / "manifest.json");
  return copy;
}

TEST(Resume, GoesOnFromNxDsFilesWithMomentsStepSamplesAndSchedule) {
  const TemporaryDirectory folder;
  RunConfig config = saving(spreads()[1], 2, 5);
  config.model.optim.sched = trainer::SchedSection{.name = "CosineAnnealing", .warmup_steps = 2};
  const TrainingRun whole = train(config, folder.path());
  const std::string copy = as_foreign(checkpoint_of(config, folder.path(), 2));
  const auto expect_same = [&](const RunConfig& from, const char* what) {
    const TrainingRun rest = train(from, (folder.path() / "elsewhere").string());
    ASSERT_EQ(rest.losses.begin()->first, 3) << what;
    EXPECT_NEAR(rest.losses.at(5), whole.losses.at(5), 1e-10) << what;
    EXPECT_LE(worst_difference(rest.states.at(5), whole.states.at(5)), 1e-10) << what;
  };
  expect_same(resumed_from(config, copy), "the same layout");
  RunConfig other = config_of(spreads()[2], "fp64", 5);
  other.model.optim = config.model.optim;
  expect_same(resumed_from(other, copy), "another layout");
  expect_same(resumed_from(config, fs::path(copy).parent_path().string()),
              "the newest of a folder");
  fs::remove(fs::path(copy) / "user_content.pt");
  expect_same(resumed_from(config, copy), "the folder's name");
  // Without a name either: the optimizer counted.
  const std::string unnamed = (folder.path() / "last").string();
  fs::rename(copy, unnamed);
  expect_same(resumed_from(config, unnamed), "the optimizer");
  fs::remove_all(fs::path(unnamed) / "optim");
  try {
    (void)train(resumed_from(config, unnamed), folder.path());
    ADD_FAILURE() << "there are no moments";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("format nxd without optimizer states"));
    EXPECT_THAT(error.what(), HasSubstr("--init-from"));
  }
}

/// A run that resumes if it can, in a folder where another program's checkpoints are.
TEST(Resume, TakesOverAFolderOfNxDt) {
  const TemporaryDirectory folder;
  RunConfig config = saving(spreads()[1], 2, 3);
  (void)train(config, folder.path());
  const std::string copy = as_foreign(checkpoint_of(config, folder.path(), 2));
  config.exp_manager.checkpoints.resume_if_exists = true;
  const TrainingRun rest = train(config, fs::path(copy).parent_path().string());
  EXPECT_EQ(rest.losses.begin()->first, 3);
  EXPECT_TRUE(fs::exists(copy)) << "what is not ours stays";
}

TEST(Resume, WeightsHaveMastersWhereTheyAreLeftOut) {
  const TemporaryDirectory folder;
  RunConfig config = config_of(spreads()[1], "mixed_precision", 4);
  config.exp_manager.checkpoints.every_n_train_steps = 2;
  const TrainingRun whole = train(config, (folder.path() / "a").string());
  config.exp_manager.checkpoints.masters_replace_weights = true;
  (void)train(config, (folder.path() / "b").string());
  const std::string full = checkpoint_of(config, (folder.path() / "a").string(), 2);
  const std::string small = checkpoint_of(config, (folder.path() / "b").string(), 2);
  EXPECT_LT(fs::file_size(small + "/model/dp_rank_00_tp_rank_00_pp_rank_00.pt"),
            fs::file_size(full + "/model/dp_rank_00_tp_rank_00_pp_rank_00.pt"));
  const TrainingRun rest = train(resumed_from(config, small), folder.path());
  EXPECT_EQ(rest.losses.at(4), whole.losses.at(4));
  const TrainingRun weights = [&] {
    RunConfig begun = resumed_from(config, small);
    begun.model.weight_init_only = true;
    return train(begun, folder.path());
  }();
  EXPECT_EQ(weights.losses.begin()->first, 1);
}

TEST(Resume, IsTheSameWhoeverReads) {
  for (const char* form : {"native", "states in DCP", "of another program"}) {
    SCOPED_TRACE(form);
    const TemporaryDirectory folder;
    RunConfig config = saving(spreads()[2], 2, 3);
    config.exp_manager.checkpoints.zero1_dcp = form == std::string("states in DCP");
    const TrainingRun whole = train(config, folder.path());
    std::string saved = checkpoint_of(config, folder.path(), 2);
    if (form == std::string("of another program")) saved = as_foreign(saved);
    RunConfig rest = resumed_from(config, saved);
    rest.model.dist_ckpt.parallel_load = false;
    const TrainingRun run = train(rest, (folder.path() / "rest").string());
    EXPECT_EQ(run.losses.at(3), whole.losses.at(3));
    EXPECT_EQ(worst_difference(run.states.at(3), whole.states.at(3)), 0);
  }
}

/// Replaces one layer's norm by another name in a checkpoint.
void rename_norm(const fs::path& checkpoint) {
  native::Manifest manifest =
      native::Manifest::from_json(content(checkpoint / "manifest.json"), "manifest");
  const std::string from = "layers.0.input_layernorm", to = "layers.0.renamed_layernorm";
  for (native::StoredTensor& tensor : manifest.tensors) {
    for (native::StoredPart& part : tensor.parts) {
      if (const std::size_t at = part.key.find(from); at != std::string::npos)
        part.key.replace(at, from.size(), to);
    }
  }
  std::ofstream(checkpoint / "manifest.json") << manifest.to_json();
}

TEST(Strictness, EachModeDoesWhatItSays) {
  const TemporaryDirectory folder;
  const RunConfig config = saving(spreads()[1], 2, 3);
  (void)train(config, folder.path());
  const std::string saved = checkpoint_of(config, folder.path(), 2);
  rename_norm(saved);
  const std::string unexpected = "has no model.layers.0.input_layernorm.weight";
  const std::string missing = "no rank asks for model.layers.0.renamed_layernorm.weight";
  struct Mode {
    const char* name;
    bool fails, says_unexpected, says_missing;
  };
  for (const Mode& mode :
       {Mode{"assume_ok_unexpected", true, true, false},
        Mode{"raise_unexpected", true, true, false}, Mode{"raise_all", true, true, true},
        Mode{"log_unexpected", false, true, false}, Mode{"log_all", false, true, true},
        Mode{"ignore_all", false, false, false}}) {
    RunConfig resumed = resumed_from(config, saved);
    resumed.model.dist_ckpt.load_strictness = mode.name;
    std::string text;
    bool failed = false;
    testing::internal::CaptureStderr();
    try {
      (void)train(resumed, folder.path());
    } catch (const ConfigError& error) {
      failed = true;
      text = error.what();
    }
    text += testing::internal::GetCapturedStderr();
    EXPECT_EQ(failed, mode.fails) << mode.name << ": " << text;
    EXPECT_EQ(text.find(unexpected) != std::string::npos, mode.says_unexpected)
        << mode.name << text;
    EXPECT_EQ(text.find(missing) != std::string::npos, mode.says_missing) << mode.name << text;
  }
  EXPECT_THROW((void)load_strictness("some"), ConfigError);
  EXPECT_EQ(load_strictness("return_all").missing, LoadStrictness::Action::kReturn);
}

/// Threads that wrote files of ranks, and what they wrote.
struct Save {
  std::set<std::thread::id> writers;
  std::map<std::string, std::string> files;
};

Save save_of(const RunConfig& config) {
  const TemporaryDirectory folder;
  Save save;
  (void)train(config, folder.path(), [&](RunCheckpoints& checkpoints) {
    checkpoints.storage().faults().set_hook([&](const FaultPoint& point) {
      if (point.path.find("_rank_") != std::string::npos)
        save.writers.insert(std::this_thread::get_id());
    });
  });
  save.files = files_of(checkpoint_of(config, folder.path(), 1));
  save.files.erase("user_content.pt");  // has the configuration
  save.files.erase("manifest.json");    // has the hash of that
  return save;
}

TEST(SaveOptions, ParallelSaveSharesFilesOut) {
  RunConfig config = saving({{1, 1, 4, false, false}}, 1, 1);
  config.exp_manager.checkpoints.save_xser = true;
  const Save shared = save_of(config);
  EXPECT_EQ(shared.writers.size(), 4U);
  config.model.dist_ckpt.parallel_save = false;
  const Save plain = save_of(config);
  EXPECT_EQ(plain.writers.size(), 1U);
  EXPECT_EQ(shared.files, plain.files);
}

TEST(SaveOptions, CopiesOfAnAsynchronousSaveStayInTheirBuffer) {
  constexpr std::int64_t kFiles = 6, kBytes = 4096;
  const at::Tensor content = at::arange(kBytes / 8, at::kLong);
  for (const std::int64_t buffer : {std::int64_t{0}, 2 * kBytes, kBytes / 2}) {
    const TemporaryDirectory folder;
    native::Saver saver(open_storage(folder.path().string()), 4,
                        {.async = true, .buffer_bytes = buffer});
    runtime::WorldOptions world;
    world.world_size = 4;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      std::vector<native::FileJob> jobs;
      for (std::int64_t i = 0; i < kFiles; ++i)
        jobs.push_back({"model/" + std::to_string(rank.rank()) + "_" + std::to_string(i) + ".pt",
                        Value::tensor(0),
                        {content + rank.rank()},
                        {},
                        {rank.rank()}});
      saver.save(rank, std::move(jobs), {},
                 [&] { return native::SaveHead{.tag = "a", .failed = [](const auto&) {}}; });
    });
    saver.wait();
    if (buffer > 0) {
      // A file that is larger than the buffer is alone in it.
      EXPECT_LE(saver.peak_copied_bytes(), std::max(buffer, kBytes));
    }
    EXPECT_GE(saver.peak_copied_bytes(), kBytes);
    ASSERT_TRUE(fs::exists(folder.path() / "a/done"));
    const native::RankStateFile file({open_storage(folder.path().string()), "a"}, "model/3_5.pt");
    EXPECT_TRUE(file.tensor(file.root()).equal(content + 3));
  }
}

TEST(SaveOptions, TorchDistThatIsNotWrittenCostsNeitherTheCheckpointNorTheTraining) {
  RunConfig config = saving(spreads()[0], 1, 2);
  config.model.dist_ckpt.format = "torch_dist";
  for (const int failing : {1, 2}) {
    const TemporaryDirectory folder;
    bool is_error = false;
    try {
      (void)train(config, folder.path(), [&](RunCheckpoints& checkpoints) {
        checkpoints.storage().faults().set_hook([=](const FaultPoint& point) {
          if (point.path.find("/iter_000000" + std::to_string(failing)) != std::string::npos)
            throw OutputError("disk on fire");
        });
      });
    } catch (const Error& error) {
      is_error = true;
      EXPECT_THAT(error.what(), HasSubstr("was not saved: as torch_dist: disk on fire"));
    }
    EXPECT_EQ(is_error, failing == 2) << "of the last one";
    for (const int step : {1, 2}) {
      const fs::path saved = checkpoint_of(config, folder.path(), step);
      EXPECT_TRUE(fs::exists(saved / "done"));
      EXPECT_EQ(fs::exists(saved / "latest_checkpointed_iteration.txt"), step != failing);
    }
  }
}

/// Number of the writer in the name of a data file of torch_dist → bytes.
std::multimap<int, std::uintmax_t> data_files(const fs::path& folder) {
  std::multimap<int, std::uintmax_t> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".distcp")) files.emplace(std::stoi(name.substr(2)), entry.file_size());
  }
  return files;
}

TEST(SaveOptions, EveryRankWritesItsPartOfTorchDist) {
  for (const std::size_t i : {1U, 2U, 4U, 5U, 8U, 9U, 10U}) {
    SCOPED_TRACE(i);
    const TemporaryDirectory folder;
    RunConfig config = saving(spreads()[i], 1, 2);
    config.model.dist_ckpt.format = "torch_dist";
    const int files_per_rank = static_cast<int>(i % 3) + 1;
    if (files_per_rank != 2) config.model.dist_ckpt.files_per_rank = files_per_rank;  // 2: default
    config.exp_manager.checkpoints.async = i % 4 < 2;
    (void)train(config, folder.path());
    for (const int step : {1, 2}) {
      const std::string saved = checkpoint_of(config, folder.path(), step);
      const fs::path direct = fs::path(saved) / ("iter_000000" + std::to_string(step));
      EXPECT_THAT(differences(saved, direct), ElementsAre());
      const auto files = data_files(direct);
      const int world = config.world_size();
      for (int rank = 0; rank < world; ++rank)
        EXPECT_EQ(files.count(rank), static_cast<std::size_t>(files_per_rank)) << rank;
      EXPECT_EQ(files.count(world), 1U) << "objects";
    }
  }
}

TEST(SaveOptions, WithoutSharedSavesTheFirstHolderWritesTorchDist) {
  const TemporaryDirectory folder;
  RunConfig config = saving(spreads()[4], 1, 2);
  config.model.dist_ckpt = {.format = "torch_dist", .parallel_save = false, .files_per_rank = 1};
  (void)train(config, folder.path());
  const std::string saved = checkpoint_of(config, folder.path(), 2);
  const fs::path direct = fs::path(saved) / "iter_0000002";
  EXPECT_THAT(differences(saved, direct), ElementsAre());
  const auto files = data_files(direct);
  for (int rank = 0; rank < config.world_size(); ++rank) {
    const bool is_first = rank / config.tp() % config.dp() == 0;
    EXPECT_EQ(files.count(rank), is_first || config.distributed_strategy.zero1 ? 1U : 0U) << rank;
  }
}

TEST(SaveOptions, AConstantStructureIsValidatedOnce) {
  for (const bool constant : {true, false}) {
    const TemporaryDirectory folder;
    native::Saver saver(open_storage(folder.path().string()), 1, {.constant_structure = constant});
    const auto save = [&](const std::string& tag, int copies) {
      runtime::WorldOptions world;
      runtime::run_ranks(world, [&](runtime::RankContext& rank) {
        const std::vector<ShardedTensor> shards(
            static_cast<std::size_t>(copies),
            ShardedTensor::from_rank_offsets("w", DType::kFloat32, {2}, {}));
        saver.save(rank, {{"model/a.pt", Value(1), {}, {}, {0}}}, shards,
                   [&] { return native::SaveHead{.tag = tag, .failed = [](const auto&) {}}; });
      });
    };
    save("a", 1);
    EXPECT_EQ(saver.plan()->items.size(), 1U);
    if (constant) {
      save("b", 2);
    } else {
      EXPECT_THROW(save("b", 2), ConfigError);
    }
    EXPECT_EQ(fs::exists(folder.path() / "b/done"), constant);
  }
}

TEST(WriteNative, StatesOfEveryOptimizerMoveWithTheWeights) {
  for (const trainer::OptimizerInfo& info : trainer::optimizer_table()) {
    const TemporaryDirectory folder;
    const auto with_optimizer = [&](const Spread& spread) {
      RunConfig config = saving(spread, 2, 2);
      config.model.optim = trainer::default_optim_section(info.name);
      config.model.optim.lr = 1e-3;
      return config;
    };
    const RunConfig source = with_optimizer(spreads()[1]);
    (void)train(source, folder.path());
    const std::string saved = checkpoint_of(source, folder.path(), 2);
    const std::string there = (folder.path() / "there").string(),
                      back = (folder.path() / "back").string();
    reshard(saved, there, with_optimizer(spreads()[3]));
    EXPECT_THAT(differences(saved, there), ElementsAre()) << info.name;
    reshard(there, back, source);
    for (const auto& [path, bytes] : files_of(fs::path(saved) / "optim"))
      EXPECT_EQ(content(fs::path(back) / "optim" / path), bytes) << info.name << " " << path;
  }
}

TEST(WriteNative, TakesWeightsOfAnotherPaddingAndPrecision) {
  const TemporaryDirectory folder;
  const RunConfig source = saving(spreads()[1], 2, 2);
  (void)train(source, folder.path());
  const std::string saved = checkpoint_of(source, folder.path(), 2);
  RunConfig target = config_of(spreads()[2], "fp32", 2);
  target.model.vocab_size += 8;
  const std::string written = (folder.path() / "written").string();
  reshard(saved, written, target, {.weights_only = true});
  const auto progress = [](std::int64_t, std::int64_t) {};
  const Comparison result =
      compare(*open_checkpoint(saved), *open_checkpoint(written),
              {.tolerance = 1e-7, .weights_only = true, .ignore_dtypes = true}, progress);
  EXPECT_TRUE(result.differences.empty());
  EXPECT_EQ(result.padded, 2);
  EXPECT_FALSE(fs::exists(fs::path(written) / "optim"));
}

TEST(WriteNative, AllThatIsMissingIsNamedBeforeAnythingIsWritten) {
  const TemporaryDirectory folder;
  RunConfig source = saving(spreads()[0], 2, 2);
  source.exp_manager.checkpoints.save_weights_only = true;
  (void)train(source, folder.path());
  RunConfig target = saving(spreads()[1]);
  target.model.num_layers = 6;
  const std::string written = (folder.path() / "written").string();
  try {
    reshard(checkpoint_of(source, folder.path(), 2), written, target);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no model.layers.5.self_attn.q_proj.weight"));
    EXPECT_THAT(error.what(), HasSubstr("has no optimizer.state.exp_avg."));
    EXPECT_THAT(error.what(), HasSubstr("--weights-only"));
  }
  EXPECT_FALSE(fs::exists(written));
}

bool is_complete(const std::string& address) {
  try {
    (void)open_checkpoint(address);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

TEST(WriteNative, BeginsAgainAfterAnInterruptionAndOverwritesNothingElse) {
  const TemporaryDirectory folder;
  const RunConfig source = saving(spreads()[0], 2, 2), target = saving(spreads()[1], 2, 2);
  (void)train(source, folder.path());
  const std::string saved = checkpoint_of(source, folder.path(), 2);
  const std::string written = (folder.path() / "written").string();
  for (int stop = 1;; ++stop) {
    const Place place = open_place(written);
    place.storage->faults().set_hook([stop](const FaultPoint& point) {
      if (point.number == stop) throw StorageStopped();
    });
    bool stopped = false;
    try {
      (void)write_native(*open_checkpoint(saved), place, target, {.threads = 1}, {});
    } catch (const StorageStopped&) {
      stopped = true;
    }
    if (!stopped || is_complete(written)) break;  // its last change is a mark that goes
    ASSERT_LT(stop, 1000);
  }
  EXPECT_THAT(differences(saved, written), ElementsAre());
  EXPECT_THROW(reshard(saved, written, target), ConfigError);
  EXPECT_THROW(reshard(saved, saved, target), ConfigError);
  EXPECT_THAT(differences(saved, written), ElementsAre());
}

TEST(WriteNative, ADamagedSourceIsNamedAndTheResultStaysIncomplete) {
  const TemporaryDirectory folder;
  const RunConfig source = saving(spreads()[0], 1, 1), target = saving(spreads()[1], 1, 1);
  (void)train(source, folder.path());
  const std::string saved = checkpoint_of(source, folder.path(), 1);
  const std::string written = (folder.path() / "written").string();
  const fs::path file = fs::path(saved) / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  std::string bytes = content(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT([&] { reshard(saved, written, target); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(HasSubstr("model/dp_rank_00_tp_rank_00_pp_rank_00.pt"),
                                 HasSubstr("its content is not what was saved"))));
  EXPECT_THROW((void)open_checkpoint(written), ConfigError);
}

}  // namespace
}  // namespace trellis::checkpoint::layout_test
