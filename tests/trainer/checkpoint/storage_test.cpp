#include "trainer/files/checkpoint/storage/storage.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/output_error.h"
#include "tests/support/temporary_directory.h"
#include "trainer/files/checkpoint/storage/lease.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint::storage_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> paths(const std::vector<Entry>& entries) {
  std::vector<std::string> result;
  for (const Entry& entry : entries) result.push_back(entry.path + (entry.is_directory ? "/" : ""));
  return result;
}

struct StorageTest : testing::Test {
  /// Everything on the disk, unfinished files too.
  [[nodiscard]] std::size_t files_on_disk() const {
    std::size_t count = 0;
    for (const auto& item : std::filesystem::recursive_directory_iterator(directory.path()))
      count += item.is_regular_file() ? 1 : 0;
    return count;
  }

  TemporaryDirectory directory;
  std::shared_ptr<Storage> storage = open_storage(directory.path().string());
};

TEST_F(StorageTest, WritesReadsAndListsFiles) {
  storage->write_text("tag/model/part.pt", "content");
  storage->write_text("tag/done", "1");
  storage->make_directories("tag/optim");
  EXPECT_EQ(storage->read_text("tag/model/part.pt"), "content");
  EXPECT_THAT(paths(storage->list("tag", false)),
              ElementsAre("tag/done", "tag/model/", "tag/optim/"));
  EXPECT_THAT(paths(storage->list("", true)),
              ElementsAre("tag/", "tag/done", "tag/model/", "tag/model/part.pt", "tag/optim/"));
  const Entry done = storage->list("tag", false)[0];
  EXPECT_EQ(done.bytes, 1);
  EXPECT_GT(done.modified_ns, std::int64_t{1'600'000'000} * 1'000'000'000);
  EXPECT_TRUE(storage->exists("tag/optim"));
  storage->remove_file("tag/done");
  storage->remove_file("tag/done");
  EXPECT_FALSE(storage->exists("tag/done"));
  storage->remove_directory("tag");
  storage->remove_directory("tag");
  EXPECT_FALSE(storage->exists("tag"));
  EXPECT_THAT(error_of([&] { (void)storage->list("tag", false); }), HasSubstr("cannot list"));
}

TEST_F(StorageTest, RefusesPathsThatLeaveTheRoot) {
  for (const char* path :
       {"/etc/passwd", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "a\\b"}) {
    EXPECT_THAT(error_of([&] { (void)storage->open(path); }), HasSubstr("path '")) << path;
    EXPECT_THAT(error_of([&] { storage->write_text(path, ""); }), HasSubstr("path '")) << path;
    EXPECT_THAT(error_of([&] { storage->remove_directory(path); }), HasSubstr("path '")) << path;
  }
  EXPECT_THAT(error_of([] { (void)open_storage("gs://bucket"); }), HasSubstr("gs://"));
}

TEST_F(StorageTest, AFileIsVisibleOnlyAfterClose) {
  storage->write_text("file", "old");
  {
    const auto file = storage->create("file");
    file->write(std::as_bytes(std::span("new", 3)));
    EXPECT_EQ(storage->read_text("file"), "old");
    EXPECT_THAT(paths(storage->list("", true)), ElementsAre("file"));
    file->close();
    EXPECT_EQ(storage->read_text("file"), "new");
  }
  {
    const auto file = storage->create("never", Durability::kAtSync);
    file->write(std::vector<std::byte>(3 << 20));
  }
  EXPECT_EQ(files_on_disk(), 1);
  const auto at_sync = storage->create("later", Durability::kAtSync);
  at_sync->close();
  storage->sync();
  EXPECT_TRUE(storage->exists("later"));
}

TEST_F(StorageTest, AShortFileIsNamedWithTheOffset) {
  storage->write_text("short", "12345");
  std::vector<std::byte> into(4);
  const auto file = storage->open("short");
  EXPECT_THAT(error_of([&] { file->read(3, into); }),
              testing::AllOf(HasSubstr("short: ends at byte 5"), HasSubstr("at offset 3")));
  EXPECT_THAT(error_of([&] { (void)file_range(file, 2, 4, "part"); }), HasSubstr("ends at byte 5"));
  const auto part = file_range(file, 1, 3, "part");
  part->read(0, std::span(into).first(3));
  EXPECT_EQ(into[2], static_cast<std::byte>('4'));
  EXPECT_THAT(error_of([&] { part->read(1, std::span(into).first(3)); }),
              HasSubstr("part: ends at byte 3"));
}

TEST_F(StorageTest, WritesWhereNothingCanBeWrittenAreNamed) {
  storage->make_directories("folder");
  EXPECT_THAT(error_of([&] { storage->write_text("folder", ""); }), HasSubstr("it is a folder"));
  storage->write_text("file", "");
  EXPECT_THAT(error_of([&] { storage->write_text("file/below", ""); }), HasSubstr("file"));
  EXPECT_THAT(error_of([&] { (void)storage->open("missing"); }), HasSubstr("missing"));
}

TEST_F(StorageTest, AFullDiskIsAnErrorAndLeavesNothing) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 100'000, .rlim_max = RLIM_INFINITY};
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit less{.rlim_cur = limit.rlim_cur, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &less);
  const std::string text(200'000, 'x');
  const std::string error = error_of([&] { storage->write_text("big", text); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(error, HasSubstr("big: write failed: File too large"));
  EXPECT_EQ(files_on_disk(), 0);
}

/// Stops a write at each of its changes, one after the other: the old content stays until the
/// rename.
TEST_F(StorageTest, EveryChangeIsAFaultPoint) {
  std::vector<std::string> kinds;
  storage->faults().set_hook([&](const FaultPoint& point) {
    EXPECT_EQ(point.number, static_cast<std::int64_t>(kinds.size()) + 1);
    kinds.emplace_back(name(point.kind));
  });
  storage->write_text("tag/file", "first");
  EXPECT_THAT(kinds, ElementsAre("make directory", "write", "write", "sync", "rename", "sync"));
  kinds.clear();
  storage->faults().set_hook(
      [&](const FaultPoint& point) { kinds.emplace_back(name(point.kind)); });
  storage->remove_directory("tag");
  EXPECT_THAT(kinds, ElementsAre("delete", "delete"));
  storage->faults().set_hook({});
  storage->write_text("tag/file", "first");
  for (std::int64_t stop = 1; stop <= 5; ++stop) {
    storage->faults().set_hook([&](const FaultPoint& point) {
      if (point.number == stop) throw StorageStopped();
    });
    EXPECT_THROW(storage->write_text("tag/file", "second"), StorageStopped);
    EXPECT_THROW(storage->remove_file("tag/file"), StorageStopped) << "a stopped storage acts";
    storage->faults().set_hook({});
    EXPECT_EQ(storage->read_text("tag/file"), stop <= 4 ? "first" : "second") << stop;
    const bool left = stop >= 2 && stop <= 4;  // after it was created, before it was renamed
    EXPECT_EQ(files_on_disk(), left ? 2 : 1) << stop;
    EXPECT_THAT(paths(storage->list("", true)), ElementsAre("tag/", "tag/file"));
    EXPECT_EQ(storage->remove_unfinished(""), left ? 1 : 0);
    EXPECT_EQ(files_on_disk(), 1);
  }
}

TEST_F(StorageTest, AnErrorOfAHookIsTheErrorOfThatChangeAndIsCleanedUp) {
  storage->faults().set_hook([](const FaultPoint& point) {
    if (point.kind == FaultPoint::Kind::kSync) throw OutputError("disk on fire");
  });
  EXPECT_THAT(error_of([&] { storage->write_text("file", "x"); }), HasSubstr("disk on fire"));
  EXPECT_EQ(files_on_disk(), 0);
  storage->faults().set_hook({});
  storage->write_text("file", "x");
  EXPECT_EQ(storage->read_text("file"), "x");
}

TEST_F(StorageTest, TwoWritersOfOneNameDoNotMix) {
  const auto one = storage->create("file"), two = storage->create("file");
  one->write(std::as_bytes(std::span("111111", 6)));
  two->write(std::as_bytes(std::span("22", 2)));
  two->close();
  one->close();
  EXPECT_EQ(storage->read_text("file"), "111111");
  EXPECT_EQ(files_on_disk(), 1);
}

TEST_F(StorageTest, LinksAreRemovedNotFollowed) {
  const TemporaryDirectory outside;
  outside.write("keep", "x");
  storage->make_directories("tag");
  std::filesystem::create_directory_symlink(outside.path(), directory.path() / "tag" / "link");
  EXPECT_THAT(paths(storage->list("", true)), ElementsAre("tag/", "tag/link/"));
  storage->remove_directory("tag");
  EXPECT_TRUE(std::filesystem::exists(outside.path() / "keep"));
}

TEST(Paths, UnfinishedNamesAreKnown) {
  EXPECT_FALSE(is_unfinished("model.pt"));
  EXPECT_FALSE(is_unfinished("a.trellis-unfinished-zz"));
  EXPECT_TRUE(is_unfinished("a/model.pt.trellis-unfinished-0123456789abcdef"));
}

struct LeaseTest : StorageTest {
  static constexpr Lease::Times kTimes{std::chrono::milliseconds(20),
                                       std::chrono::milliseconds(200)};
  [[nodiscard]] std::vector<std::string> leases() const {
    return storage->exists(Lease::kFolder) ? paths(storage->list(Lease::kFolder, false))
                                           : std::vector<std::string>{};
  }
  void write_lease(const std::string& process) const {
    storage->write_text(std::string(Lease::kFolder) + "/other", "7\n" + process + "\nprocess 8\n");
  }
};

TEST_F(LeaseTest, ASecondRunIsRefusedWhileTheFirstLives) {
  {
    Lease first(storage, "", kTimes);
    const std::string error = error_of([&] { Lease(storage, "go elsewhere", kTimes); });
    EXPECT_THAT(error, HasSubstr("another process saves there now: process " +
                                 std::to_string(::getpid()) + " on host"));
    EXPECT_THAT(error, HasSubstr("go elsewhere"));
    EXPECT_EQ(leases().size(), 1U);
    first.check();
  }
  EXPECT_TRUE(leases().empty());
  Lease(storage, "", kTimes).check();
}

TEST_F(LeaseTest, OfTwoThatBeginAtOnceAtMostOneHolds) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> holding = 0, most = 0;
    const auto begin = [&] {
      try {
        const Lease lease(storage, "", kTimes);
        most = std::max(most.load(), ++holding);
        std::this_thread::sleep_for(kTimes.expired);
        --holding;
      } catch (const ConfigError&) {}
    };
    const std::jthread other(begin);
    begin();
    EXPECT_LE(most, 1);
  }
}

TEST_F(LeaseTest, AProcessThatHasEndedHoldsNothing) {
  const auto start = std::chrono::steady_clock::now();
  std::string own;
  {
    const Lease lease(storage, "", kTimes);
    own = storage->read_text(leases().at(0));
  }
  std::istringstream lines(own);
  std::string process;
  std::getline(lines, process);
  std::getline(lines, process);
  // The number of a process that has ended was given to this one.
  write_lease(process + "0");
  constexpr Lease::Times kSlow{std::chrono::milliseconds(20), std::chrono::hours(1)};
  Lease(storage, "", kSlow).check();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
  // One of another host is waited for.
  write_lease("boot pid:[1] 8 9");
  const auto waited = std::chrono::steady_clock::now();
  Lease(storage, "", kTimes).check();
  EXPECT_GE(std::chrono::steady_clock::now() - waited, kTimes.expired);
}

TEST_F(LeaseTest, AFolderThatAnotherRunTookIsNotWrittenTo) {
  Lease lease(storage, "", kTimes);
  storage->remove_directory(Lease::kFolder);
  std::this_thread::sleep_for(5 * kTimes.renewed);
  EXPECT_THAT(error_of([&] { lease.check(); }), HasSubstr("another run took the folder"));
  EXPECT_TRUE(leases().empty());
}

}  // namespace
}  // namespace trellis::checkpoint::storage_test
