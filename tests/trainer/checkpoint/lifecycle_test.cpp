// Whose checkpoints a run removes, what a start cleans up, and what becomes of a damaged one.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint/spread.h"
#include "trainer/files/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/lifecycle/damaged.h"
#include "trainer/files/checkpoint/lifecycle/save_outcome.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint::lifecycle_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using testing_support::config_of;
using testing_support::train;
using trainer::RunConfig;
namespace fs = std::filesystem;

struct LifecycleTest : testing::Test {
  /// A complete checkpoint without tensors.
  void save(const std::string& tag, std::int64_t sequence, const std::string& run,
            const std::string& said_tag) {
    native::Manifest manifest;
    manifest.step = manifest.sequence = sequence;
    manifest.metric = static_cast<double>(sequence);
    manifest.run = run;
    manifest.tag = said_tag;
    storage->write_text(tag + "/" + native::kBeginFile, "1");
    storage->write_text(tag + "/" + native::kManifestFile, manifest.to_json());
    storage->write_text(tag + "/" + native::kDoneFile, "1");
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory.path()))
      names.push_back(entry.path().filename());
    return names;
  }
  /// The checkpoints that stay after a save of `self` that keeps the best one.
  std::vector<std::string> kept_by(const RunIdentity& self) {
    CheckpointFolder folder(storage, kCheckpointSuffix, self);
    save("new.ckpt", 100, self.run, "new.ckpt");
    keep_saved(folder, {"new.ckpt", 100, 100, 100.0}, {}, {.save_top_k = 1, .mode_max = true});
    return names();
  }

  TemporaryDirectory directory;
  std::shared_ptr<Storage> storage = open_storage(directory.path().string());
};

TEST_F(LifecycleTest, ARunRemovesItsOwnCheckpointsAlone) {
  save("a.ckpt", 1, "this", "a.ckpt");
  save("b.ckpt", 2, "another", "b.ckpt");
  save("kept by the user.ckpt", 3, "this", "c.ckpt");
  save("old.ckpt", 4, "", "");
  fs::create_directory_symlink(directory.path() / "a.ckpt", directory.path() / "link.ckpt");
  EXPECT_THAT(kept_by({"this"}), UnorderedElementsAre("b.ckpt", "kept by the user.ckpt", "old.ckpt",
                                                      "new.ckpt", "link.ckpt"));
}

TEST_F(LifecycleTest, CheckpointsWithoutANameAreOfTheRunWhoseFolderItIs) {
  save("a.ckpt", 1, "", "");
  save("b.ckpt", 2, "another", "b.ckpt");
  EXPECT_THAT(kept_by({"this", /*owns_unnamed=*/true}), UnorderedElementsAre("b.ckpt", "new.ckpt"));
}

TEST_F(LifecycleTest, OneOfTheSameNameOfAnotherRunIsNotReplaced) {
  save("m.ckpt", 1, "another", "m.ckpt");
  CheckpointFolder folder(storage, kCheckpointSuffix, {"this"});
  const CheckpointFolder::FreeTag free = folder.free_tag("m", false);
  EXPECT_EQ(free.tag, "m-v1.ckpt");
  EXPECT_THAT(free.replaced, ElementsAre());
}

TEST_F(LifecycleTest, OnlyOwnMarksAreCleanedUp) {
  for (const char* tag : {"ours.ckpt", "nemo.ckpt"}) save(tag, 1, "", "");
  std::ofstream(directory.path() / "ours.ckpt-unfinished") << "1";
  std::ofstream(directory.path() / "nemo.ckpt-unfinished");  // NeMo touches it
  save("target", 2, "", "");
  fs::create_directory_symlink(directory.path() / "target", directory.path() / "link.ckpt");
  std::ofstream(directory.path() / "link.ckpt-unfinished") << "1";
  CheckpointFolder(storage).clean_up();
  EXPECT_THAT(names(), UnorderedElementsAre("nemo.ckpt", "nemo.ckpt-unfinished", "target",
                                            "link.ckpt", "link.ckpt-unfinished"));
}

TEST_F(LifecycleTest, MarksAreLookedInto) {
  save("a.ckpt", 1, "", "");
  for (const char* mark : {native::kBeginFile, native::kDoneFile}) {
    storage->write_text(std::string("a.ckpt/") + mark, "");
    EXPECT_FALSE(CheckpointFolder(storage).newest()) << mark;
    EXPECT_THAT([&] { (void)native::read_manifest(*storage, "a.ckpt"); },
                testing::ThrowsMessage<ConfigError>(HasSubstr("expected \"1\", got \"\"")));
    storage->write_text(std::string("a.ckpt/") + mark, "1");
  }
  EXPECT_TRUE(CheckpointFolder(storage).newest());
}

TEST_F(LifecycleTest, RemovalsOfMarksSurviveAPowerCut) {
  save("a.ckpt", 1, "", "");
  std::vector<std::pair<FaultPoint::Kind, std::string>> changes;
  storage->faults().set_hook(
      [&](const FaultPoint& point) { changes.emplace_back(point.kind, point.path); });
  CheckpointFolder(storage).remove("a.ckpt");
  const std::pair unlinked{FaultPoint::Kind::kDelete, std::string("a.ckpt-unfinished")},
      synced{FaultPoint::Kind::kSync, std::string()};
  ASSERT_GE(changes.size(), 2U);
  EXPECT_EQ(changes[changes.size() - 2], unlinked);
  EXPECT_EQ(changes.back(), synced);
}

TEST_F(LifecycleTest, ADamagedOneIsSetAside) {
  for (int i = 1; i <= 3; ++i) save("m" + std::to_string(i) + ".ckpt", i, "", "");
  storage->write_text("m2.ckpt/manifest.json", "{}");
  EXPECT_EQ(first_damage({storage, "m3.ckpt"}), "");
  EXPECT_THAT(first_damage({storage, "m2.ckpt"}), HasSubstr("m2.ckpt/manifest.json"));
  EXPECT_EQ(next_whole({storage, "m3.ckpt"})->tag, "m1.ckpt");
  EXPECT_FALSE(next_whole({storage, "m1.ckpt"}));
  EXPECT_EQ(set_aside({storage, "m3.ckpt"}), "m3.ckpt.damaged");
  save("m3.ckpt", 3, "", "");
  EXPECT_EQ(set_aside({storage, "m3.ckpt"}), "m3.ckpt.damaged-2");
  const CheckpointFolder folder(storage);
  EXPECT_EQ(folder.newest()->tag, "m1.ckpt");
  EXPECT_THAT(names(),
              UnorderedElementsAre("m1.ckpt", "m2.ckpt", "m3.ckpt.damaged", "m3.ckpt.damaged-2"));
}

TEST_F(LifecycleTest, AnUnreadableManifestOfTheNewestIsNoReasonToTakeAnOlderOne) {
  RunConfig config = config_of({}, "fp32", 2);
  config.exp_manager.checkpoints.every_n_train_steps = 1;
  (void)train(config, directory.path());
  config.exp_manager.checkpoints.resume_if_exists = true;
  const std::string last = "m--step=2-consumed_samples=16.0-last.ckpt/manifest.json";
  const std::string good = storage->read_text(last);
  storage->write_text(last, good.substr(0, good.size() / 2));
  try {
    (void)find_resume(config, directory.path());
    ADD_FAILURE() << "an older one was taken";
  } catch (const native::DamagedCheckpoint& error) {
    EXPECT_EQ(join_path(error.place().path, "manifest.json"), last);
  }
}

RunConfig monitored(const std::string& monitor) {
  RunConfig config = config_of({}, "fp32", 4);
  trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  section.every_n_train_steps = 1;
  section.every_n_epochs = 0;
  section.monitor = monitor;
  section.mode = "min";
  section.save_top_k = 2;
  section.filename = "{step}-{" + monitor + ":.4f}";
  section.auto_insert_metric_name = false;
  return config;
}

TEST_F(LifecycleTest, AMonitorThatIsNotThereIsRefused) {
  EXPECT_THAT([&] { (void)train(monitored("los"), directory.path()); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(HasSubstr("has logged no los"), HasSubstr("reduced_train_loss"))));
}

TEST_F(LifecycleTest, BeforeTheFirstValidationNothingIsRankedByIt) {
  (void)train(monitored("val_loss"), directory.path());
  EXPECT_THAT(names(), ElementsAre("4-nan-last.ckpt"));
}

TEST_F(LifecycleTest, AKillBetweenACheckpointAndItsLastCopyIsMadeGoodAtTheEnd) {
  RunConfig config = config_of({}, "fp32", 2);
  config.exp_manager.checkpoints.every_n_train_steps = 2;
  config.exp_manager.checkpoints.resume_if_exists = true;
  config.exp_manager.checkpoints.resume_ignore_no_checkpoint = true;
  (void)train(config, directory.path());
  const fs::path last = directory.path() / "m--step=2-consumed_samples=16.0-last.ckpt";
  fs::remove_all(last);
  EXPECT_EQ(train(config, directory.path()).losses.size(), 0U);
  EXPECT_TRUE(fs::exists(last / "done"));
}

}  // namespace
}  // namespace trellis::checkpoint::lifecycle_test
