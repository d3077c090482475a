// Keys that say in which form checkpoints are saved, and what of older ones stays.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/spread.h"
#include "trainer/checkpoint/layout/open_nxd.h"
#include "trainer/checkpoint/training/write_native.h"
#include "trainer/files/checkpoint/conversion/compare.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"

namespace trellis::checkpoint::forms_test {
namespace {

using testing::HasSubstr;
using testing_support::checkpoint_of;
using testing_support::config_of;
using testing_support::files_of;
using testing_support::resumed_from;
using testing_support::Spread;
using testing_support::spreads;
using testing_support::train;
using testing_support::TrainingRun;
using trainer::RunConfig;
namespace fs = std::filesystem;

RunConfig saving(const Spread& spread, std::int64_t every, std::int64_t steps) {
  RunConfig config = config_of(spread, "fp64", steps);
  config.exp_manager.checkpoints.every_n_train_steps = every;
  config.exp_manager.checkpoints.every_n_epochs = 0;
  return config;
}

/// Saves each of its steps.
RunConfig small_run(std::int64_t steps) {
  RunConfig config = config_of({{2, 1, 2, false, true}}, "mixed_precision", steps);
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  return config;
}

std::size_t differences(const std::string& a, const std::string& b) {
  const auto progress = [](std::int64_t, std::int64_t) {};
  const Comparison comparison = compare(*open_checkpoint(a), *open_checkpoint(b), {}, progress);
  return comparison.differences.size();
}

TEST(Zero1Dcp, HasTheStatesOfFilesByRankAndMovesToEveryLayout) {
  // Two fused projections, copies of heads, stages with a virtual pipeline, and DP 8 of few rows.
  for (const auto& [i, to] : {std::pair{1U, 3U}, {4U, 1U}, {8U, 0U}, {10U, 4U}, {10U, 1U}}) {
    SCOPED_TRACE(i);
    const TemporaryDirectory folder;
    RunConfig config = saving(spreads()[i], 2, 2);
    config.exp_manager.ema = trainer::EmaSection{.decay = 0.9};
    const std::string plain = folder.path() / "plain", dcp = folder.path() / "dcp";
    (void)train(config, plain);
    config.exp_manager.checkpoints.zero1_dcp = config.exp_manager.checkpoints.async = true;
    (void)train(config, dcp);
    const std::string by_rank = checkpoint_of(config, plain, 2),
                      in_dcp = checkpoint_of(config, dcp, 2);
    EXPECT_EQ(differences(by_rank, in_dcp), 0U);
    EXPECT_TRUE(fs::exists(fs::path(in_dcp) / "optim/.metadata"));
    EXPECT_FALSE(fs::exists(fs::path(in_dcp) / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"));
    RunConfig target = saving(spreads()[to], 9, 4);
    target.exp_manager.ema = config.exp_manager.ema;
    const TrainingRun expected = train(resumed_from(target, by_rank), folder.path() / "none"),
                      got = train(resumed_from(target, in_dcp), folder.path() / "none");
    EXPECT_EQ(got.losses, expected.losses);
    for (const auto& [key, tensor] : expected.states.at(4))
      EXPECT_TRUE(got.states.at(4).at(key).equal(tensor)) << key;
    const std::string written = folder.path() / "written";
    (void)write_native(*open_checkpoint(in_dcp), open_place(written), target, {}, {});
    EXPECT_EQ(differences(written, by_rank), 0U);
  }
}

TEST(Zero1Dcp, AFlippedByteOfADataFileIsNamed) {
  const TemporaryDirectory folder;
  RunConfig config = saving(spreads()[1], 2, 2);
  config.exp_manager.checkpoints.zero1_dcp = config.exp_manager.checkpoints.async = true;
  (void)train(config, folder.path());
  const std::string saved = checkpoint_of(config, folder.path(), 2);
  const fs::path file = fs::path(saved) / "optim/__3_0.distcp";
  std::ifstream stream(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  try {
    (void)train(resumed_from(saving(spreads()[0], 9, 4), saved), folder.path() / "none");
    ADD_FAILURE() << "a changed byte was loaded";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("optim/__3_0.distcp: its content is not what was saved"));
  }
}

void write_again(const std::string& from, const std::string& to, const RunConfig& config,
                 const NativeOptions& options = {}) {
  (void)write_native(*open_checkpoint(from), open_place(to), config, options, {});
}

/// The files of a checkpoint except for those that count its folder's and have the configuration.
std::map<std::string, std::string> tensor_files_of(const fs::path& checkpoint) {
  auto files = files_of(checkpoint);
  files.erase("manifest.json");
  files.erase("user_content.pt");
  return files;
}

void expect_same_files(const fs::path& got, const fs::path& expected) {
  const auto files = tensor_files_of(got), wanted = tensor_files_of(expected);
  EXPECT_EQ(files.size(), wanted.size());
  for (const auto& [path, bytes] : wanted) {
    ASSERT_TRUE(files.contains(path)) << path;
    EXPECT_TRUE(files.at(path) == bytes) << path;  // too many bytes to be shown
  }
}

/// Keys that say what a checkpoint has, and in which form.
struct Form {
  const char* name;
  const char* precision;
  void (*set)(RunConfig&);
};
constexpr Form kForms[] = {
    {"files by rank", "fp64", [](RunConfig&) {}},
    {"xser", "fp64", [](RunConfig& c) { c.exp_manager.checkpoints.save_xser = true; }},
    {"save_bf16", "fp64", [](RunConfig& c) { c.exp_manager.checkpoints.save_bf16 = true; }},
    {"weights only", "fp64",
     [](RunConfig& c) { c.exp_manager.checkpoints.save_weights_only = true; }},
    {"states in DCP", "mixed_precision",
     [](RunConfig& c) {
       c.exp_manager.checkpoints.zero1_dcp = c.exp_manager.checkpoints.async = true;
     }},
    {"masters replace weights", "mixed_precision",
     [](RunConfig& c) { c.exp_manager.checkpoints.masters_replace_weights = true; }},
    {"torch_dist", "mixed_precision",
     [](RunConfig& c) {
       c.model.dist_ckpt = {.format = "torch_dist", .files_per_rank = 3};
       c.exp_manager.ema = trainer::EmaSection{.decay = 0.9};
     }},
    {"gathered states", "mixed_precision",
     [](RunConfig& c) {
       c.model.dist_ckpt.parallel_dist_opt = false;
       c.exp_manager.checkpoints.masters_replace_weights = true;
     }},
    {"torch_dist with gathered states", "mixed_precision",
     [](RunConfig& c) {
       c.model.dist_ckpt = {.format = "torch_dist", .parallel_dist_opt = false};
     }},
    {"torch_dist by first holders", "mixed_precision",
     [](RunConfig& c) { c.model.dist_ckpt = {.format = "torch_dist", .parallel_save = false}; }},
};

RunConfig saving_as(const Form& form, const Spread& spread) {
  RunConfig config = config_of(spread, form.precision, 1);
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  form.set(config);
  return config;
}

/// Bytes that a training saved, once through another layout in the usual form and back.
TEST(Reshard, HasTheFilesOfATrainingInEveryForm) {
  for (const Form& form : kForms) {
    for (const std::size_t i : {1U, 5U, 8U}) {
      SCOPED_TRACE(form.name + std::string(", ") + std::to_string(i));
      const TemporaryDirectory folder;
      const RunConfig config = saving_as(form, spreads()[i]);
      (void)train(config, folder.path());
      const std::string saved = checkpoint_of(config, folder.path(), 1);
      const std::string same = folder.path() / "same", other = folder.path() / "other",
                        back = folder.path() / "back";
      write_again(saved, same, config);
      expect_same_files(same, saved);
      RunConfig usual = config_of(spreads()[2], form.precision, 1);
      usual.exp_manager.ema = config.exp_manager.ema;
      write_again(saved, other, usual,
                  {.weights_only = config.exp_manager.checkpoints.save_weights_only});
      write_again(other, back, config);
      expect_same_files(back, saved);
    }
  }
}

TEST(Reshard, WeightsAloneAreWholeWhereMastersWouldReplaceThem) {
  const TemporaryDirectory folder;
  RunConfig config = saving_as(kForms[5], spreads()[1]);
  (void)train(config, folder.path() / "small");
  const std::string saved = checkpoint_of(config, folder.path() / "small", 1);
  const std::string weights = folder.path() / "weights";
  write_again(saved, weights, config, {.weights_only = true});
  config.exp_manager.checkpoints.masters_replace_weights = false;
  (void)train(config, folder.path() / "full");
  const auto progress = [](std::int64_t, std::int64_t) {};
  const Comparison result =
      compare(*open_checkpoint(checkpoint_of(config, folder.path() / "full", 1)),
              *open_checkpoint(weights), {.weights_only = true}, progress);
  EXPECT_TRUE(result.differences.empty());
  EXPECT_FALSE(fs::exists(fs::path(weights) / "optim"));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// NeMo's dist_ckpt_parallel_dist_opt: false. Two fused projections, PP 4 without ZeRO-1, copies of
/// heads, stages with a virtual pipeline, DP 8 of few rows.
TEST(GatheredStates, AreInOneFileOfEachModelParallelPlaceAndMoveToEveryLayout) {
  // The thread that writes asynchronously does not know the layout: it is there for two of them.
  for (const auto& [i, to, async] : {std::tuple{1U, 3U, true},
                                     {3U, 1U, false},
                                     {4U, 1U, false},
                                     {5U, 2U, true},
                                     {10U, 4U, false}}) {
    SCOPED_TRACE(i);
    const TemporaryDirectory folder;
    RunConfig config = saving(spreads()[i], 2, 4);
    config.exp_manager.ema = trainer::EmaSection{.decay = 0.9};
    config.exp_manager.checkpoints.async = async;
    const std::string plain = folder.path() / "plain", gathered = folder.path() / "gathered";
    const TrainingRun whole = train(config, plain);
    config.model.dist_ckpt.parallel_dist_opt = false;
    (void)train(config, gathered);
    const std::string by_rank = checkpoint_of(config, plain, 2),
                      by_first = checkpoint_of(config, gathered, 2);
    EXPECT_EQ(differences(by_rank, by_first), 0U);
    std::vector<std::string> expected;
    for (const std::string& name : names_in(fs::path(by_first) / "model"))
      expected.push_back(name);  // dp_rank_00 of each TP and PP
    EXPECT_EQ(names_in(fs::path(by_first) / "optim"), expected);
    // Both kinds, whatever the key of the run that loads them.
    for (const auto& [from, parallel] : {std::pair{by_rank, false}, {by_first, true}}) {
      RunConfig rest = resumed_from(config, from);
      rest.model.dist_ckpt.parallel_dist_opt = parallel;
      const TrainingRun got = train(rest, folder.path() / "none");
      EXPECT_EQ(got.losses.at(4), whole.losses.at(4));
      for (const auto& [key, tensor] : whole.states.at(4))
        EXPECT_TRUE(got.states.at(4).at(key).equal(tensor)) << key;
    }
    RunConfig target = saving(spreads()[to], 9, 4);
    target.exp_manager.ema = config.exp_manager.ema;
    EXPECT_EQ(train(resumed_from(target, by_first), folder.path() / "none").losses,
              train(resumed_from(target, by_rank), folder.path() / "none").losses);
  }
}

TEST(GatheredStates, OfFullyShardedCopiesAndWithoutAManifest) {
  const TemporaryDirectory folder;
  RunConfig config = saving({{2, 1, 4, false, true}}, 2, 2);
  config.distributed_strategy.fsdp = true;
  config.distributed_strategy.data_parallel_replicate_size = 2;
  const std::string plain = folder.path() / "plain", gathered = folder.path() / "gathered";
  (void)train(config, plain);
  config.model.dist_ckpt.parallel_dist_opt = false;
  (void)train(config, gathered);
  const std::string by_rank = checkpoint_of(config, plain, 2),
                    by_first = checkpoint_of(config, gathered, 2);
  EXPECT_EQ(differences(by_rank, by_first), 0U);
  EXPECT_EQ(names_in(fs::path(by_rank) / "optim").size(), 4U);
  EXPECT_EQ(names_in(fs::path(by_first) / "optim").size(), 2U);
  // As NxD would find them: what files by rank say.
  for (const std::string& saved : {by_rank, by_first}) {
    const std::string foreign = fs::path(saved).parent_path() / "foreign--step=2.ckpt";
    fs::copy(saved, foreign, fs::copy_options::recursive);
    fs::remove(fs::path(foreign) / "manifest.json");
    const auto progress = [](std::int64_t, std::int64_t) {};
    EXPECT_TRUE(compare(*open_checkpoint(saved), *open_checkpoint(foreign, config), {}, progress)
                    .differences.empty());
  }
}

TEST(Kept, OnlyTheNewestKeepStatesOfTheOptimizer) {
  const TemporaryDirectory folder;
  RunConfig config = small_run(4);
  config.exp_manager.checkpoints.save_top_k = -1;
  config.exp_manager.checkpoints.save_last_n_optim_states = 2;
  const TrainingRun whole = train(config, folder.path());
  for (const std::int64_t step : {1, 2, 3, 4})
    EXPECT_EQ(fs::exists(fs::path(checkpoint_of(config, folder.path(), step)) / "optim"), step > 2);
  RunConfig rest = resumed_from(config, checkpoint_of(config, folder.path(), 3));
  EXPECT_EQ(train(rest, folder.path()).losses.at(4), whole.losses.at(4));
  rest = resumed_from(config, checkpoint_of(config, folder.path(), 1));
  EXPECT_THAT([&] { (void)train(rest, folder.path()); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("has no optimizer.state.exp_avg")));
  rest.model.weight_init_only = true;
  EXPECT_EQ(train(rest, folder.path()).losses.size(), 4U);
}

TEST(Kept, AVersionCounterKeepsThoseOfTheSameName) {
  for (const bool counts : {false, true}) {
    const TemporaryDirectory folder;
    RunConfig config = small_run(2);
    config.exp_manager.checkpoints.filename = "m";
    config.exp_manager.checkpoints.save_top_k = -1;
    config.exp_manager.checkpoints.enable_version_counter = counts;
    (void)train(config, folder.path());
    EXPECT_EQ(fs::exists(folder.path() / "m.ckpt"), counts);
    EXPECT_TRUE(fs::exists(folder.path() / "m-v1.ckpt"));
  }
}

}  // namespace
}  // namespace trellis::checkpoint::forms_test
