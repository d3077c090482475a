#include "sim/storage/save_time.h"

#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/config/load_system.h"

namespace trellis::sim {
namespace {

constexpr std::int64_t kGB = 1'000'000'000;

/// Ranks on the first cores of a cluster that all write files of the same sizes.
class SaveTime : public testing::Test {
 protected:
  void use(const std::string& storage_name, int ranks, int nodes = 1) {
    system = load_system("trn1.32xlarge", nodes);
    storage = load_storage(storage_name, system);
    host = load_host_costs();
    cores.resize(static_cast<std::size_t>(ranks));
    std::iota(cores.begin(), cores.end(), 0);
  }
  [[nodiscard]] CheckpointPlan plan(std::vector<std::int64_t> files, bool asynchronous) const {
    CheckpointPlan plan;
    plan.every_n_steps = 10;
    plan.asynchronous = asynchronous;
    RankFiles rank;
    rank.files = std::move(files);
    rank.tensors = static_cast<std::int64_t>(rank.files.size());
    rank.read_bytes = rank.state_bytes = rank.bytes();
    rank.read_files = rank.state_tensors = rank.tensors;
    rank.largest_tensor = rank.files.empty() ? 0 : rank.files.front();
    plan.classes = {rank};
    plan.class_of.assign(cores.size(), 0);
    return plan;
  }
  [[nodiscard]] SaveTiming save(const CheckpointPlan& plan) const {
    return time_save(plan, {system, storage, host, cores});
  }
  /// Seconds of the writing alone, of the last rank.
  [[nodiscard]] double write_s(const CheckpointPlan& plan) const {
    double last = 0;
    for (const RankSave& rank : save(plan).ranks)
      last = std::max(last, to_seconds(rank.written - rank.write_start));
    return last;
  }
  [[nodiscard]] double copy_s(const CheckpointPlan& plan) const {
    const SaveTiming timing = save(plan);
    return to_seconds(timing.copied - timing.begun);
  }

  SystemConfig system;
  StorageConfig storage;
  HostCosts host;
  std::vector<int> cores;
};

TEST_F(SaveTime, OneRankWritesAtItsConnections) {
  use("nvme", 1);
  EXPECT_NEAR(write_s(plan({3 * kGB}, true)), 2 + 1e-3, 1e-6) << "1.5 GB/s and one file";
  use("s3", 1);
  EXPECT_NEAR(write_s(plan({3 * kGB}, true)), 3e9 / (15 * 87.5e6) + 3 * 0.15, 1e-6)
      << "15 connections of 87.5 MB/s; begin, parts and end of an upload";
  use("fsx", 1);
  EXPECT_NEAR(write_s(plan({5 * kGB}, true)), 5e9 / (5e9 / 8) + 2e-3, 1e-6) << "5 Gbps";
}

TEST_F(SaveTime, AllRanksOfAnInstanceShareItsRate) {
  use("nvme", 32);
  EXPECT_NEAR(write_s(plan({kGB}, true)), 32e9 / (720'000.0 * 4096) + 1e-3, 1e-3);
  EXPECT_EQ(save(plan({kGB}, true)).limit, "the rate of an instance");
  use("s3", 32);
  EXPECT_NEAR(write_s(plan({4 * kGB}, true)), 128e9 / (100e9 / 8) + 32 * 62 / 3500.0, 0.02)
      << "60 parts, begin and end of each file at 3,500 requests a second, then 100 Gb/s";
}

TEST_F(SaveTime, InstancesHaveTheirOwnDisksAndShareAFileSystem) {
  use("nvme", 64, 2);
  EXPECT_NEAR(write_s(plan({kGB}, true)), 32e9 / (720'000.0 * 4096) + 1e-3, 1e-3)
      << "two instances, twice the disks";
  use("fsx", 128, 4);
  EXPECT_NEAR(write_s(plan({kGB}, true)), 128e9 / (1e9 * 4800 / 1024), 0.05)
      << "four instances of 2.5 GB/s, 4.7 GB/s for all";
  EXPECT_EQ(save(plan({kGB}, true)).limit, "the rate of all instances together");
}

TEST_F(SaveTime, ManySmallFilesWaitForRequests) {
  use("s3", 32);
  const std::vector<std::int64_t> files(1000, 1000);
  EXPECT_NEAR(write_s(plan(files, true)), 1000 * 0.15, 0.5) << "one after the other";
  EXPECT_EQ(save(plan(files, true)).limit, "the latency of files");
  use("s3", 32 * 32, 32);
  EXPECT_NEAR(write_s(plan(files, true)), 1024 * 1000 / 3500.0, 1) << "3,500 PUT a second";
  EXPECT_EQ(save(plan(files, true)).limit, "the requests per second");
}

TEST_F(SaveTime, CopiesUseTheChipsHostEnginesAndTheHostsMemory) {
  use("nvme", 1);
  const double latency = to_seconds(system.chip.host_write_latency);
  EXPECT_NEAR(copy_s(plan({16 * kGB}, true)), 1 + latency, 1e-9) << "one engine, 16 GB/s";
  use("nvme", 2);
  EXPECT_NEAR(copy_s(plan({16 * kGB}, true)), 1 + latency, 1e-9) << "two engines a chip";
  use("nvme", 32);
  EXPECT_NEAR(copy_s(plan({8 * kGB}, true)), 32 * 8.0 / 130 + latency, 1e-6)
      << "the memory of the host";
}

TEST_F(SaveTime, SynchronousWaitsForAllAsynchronousForTheCopy) {
  use("nvme", 32);
  const CheckpointPlan sync = plan({kGB}, false), async = plan({kGB}, true);
  const SaveTiming timing = save(sync);
  EXPECT_EQ(timing.complete, save(async).complete) << "the same work";
  const Picoseconds hour(3'600'000'000'000'000);
  EXPECT_EQ(exposed_time(timing, false, hour).total(), timing.complete);
  EXPECT_EQ(exposed_time(save(async), true, hour).total(), timing.copied);
  EXPECT_LT(timing.copied, timing.complete);
  EXPECT_EQ(timing.complete - timing.ranks[0].written, storage.write.file_latency * 4)
      << "user content, manifest and marks follow";
}

TEST_F(SaveTime, TheNextAsynchronousSaveWaitsForThePrevious) {
  use("nvme", 32);
  const SaveTiming timing = save(plan({kGB}, true));
  const Picoseconds background = timing.complete - timing.copied;
  const Picoseconds shorter = background - Picoseconds(1'000'000'000'000);
  EXPECT_EQ(exposed_time(timing, true, background).previous, Picoseconds());
  EXPECT_EQ(exposed_time(timing, true, shorter).previous, Picoseconds(1'000'000'000'000));
  EXPECT_EQ(exposed_time(timing, true, shorter).own, timing.copied);
}

TEST_F(SaveTime, ASmallBufferMakesTheCopyWaitForTheWriting) {
  use("nvme", 32);
  CheckpointPlan bounded = plan({4 * kGB}, true);
  const SaveTiming free = save(bounded);
  EXPECT_EQ(free.buffer, Bytes(32 * 4 * kGB));
  EXPECT_EQ(free.buffer_cap, Bytes(256LL << 30)) << "half of the host's memory";
  bounded.buffer = Bytes(32 * kGB);
  const SaveTiming capped = save(bounded);
  EXPECT_EQ(capped.buffer, Bytes(32 * kGB));
  // The last byte enters the buffer when 3 of 4 GB of each rank are written.
  const double rate = 720'000.0 * 4096;
  EXPECT_NEAR(to_seconds(capped.copied), 3 * 32e9 / rate + 32 / 130.0, 0.02);
  EXPECT_LT(free.copied, capped.copied);
  EXPECT_NEAR(to_seconds(capped.complete), 4 * 32e9 / rate + 32 / 130.0, 0.02);
  bounded.buffer = Bytes(32 * 4 * kGB);
  EXPECT_EQ(save(bounded).ranks, free.ranks) << "all of it fits";
}

TEST_F(SaveTime, SharingTheWritingEndsEarlier) {
  use("nvme", 4);  // below the instance's rate together: a rank's own rate decides
  CheckpointPlan one = plan({kGB}, false);
  one.classes.push_back({});
  one.class_of = {0, 1, 1, 1};
  CheckpointPlan all = plan({kGB / 4}, false);
  EXPECT_EQ(one.bytes(), all.bytes());
  EXPECT_GT(save(one).complete, save(all).complete);
}

TEST_F(SaveTime, StatesTravelToTheRankThatWritesThem) {
  use("nvme", 64, 2);
  CheckpointPlan each = plan({kGB}, false);
  // Rank 0 writes what a rank of its instance and one of another have.
  CheckpointPlan gathered = each;
  gathered.classes.push_back({{}, 0, 0, 0, 0, 0, 0});
  gathered.classes.push_back(gathered.classes[0]);
  gathered.classes[2].files = {3 * kGB};
  for (int rank = 0; rank < 64; ++rank) gathered.class_of[static_cast<std::size_t>(rank)] = 1;
  gathered.class_of[0] = 2;
  gathered.gathers = {{1, 0, kGB, 1}, {32, 0, kGB, 1}};
  EXPECT_EQ(gathered.gathered_bytes(), 2 * kGB);
  const SaveTiming timing = save(gathered);
  const double copied = kGB / 16e9 + to_seconds(system.chip.host_write_latency);
  const auto& instance = system.instance;
  const double nics =
      instance.efa.bandwidth.value * instance.efa_nics * system.collectives.efa_efficiency;
  const double local = copied + kGB / host.copy_rate.value,
               remote = copied + kGB / nics + to_seconds(instance.efa.latency);
  EXPECT_NEAR(to_seconds(timing.gathered - timing.begun), std::max(local, remote), 1e-6);
  EXPECT_EQ(timing.ranks[0].write_start, timing.gathered);
  EXPECT_NEAR(to_seconds(timing.ranks[1].copied - timing.begun), local, 1e-6);
  EXPECT_NEAR(to_seconds(timing.ranks[32].copied - timing.begun), remote, 1e-6);
  EXPECT_EQ(timing.ranks[2].copied, timing.begun) << "has nothing";
  EXPECT_EQ(save(each).gathered, Picoseconds());
  EXPECT_EQ(timing.buffer, Bytes(3 * kGB)) << "whole, in host memory";
}

TEST_F(SaveTime, LoadsReadOnceAndCopyTheState) {
  use("nvme", 32);
  const CheckpointPlan same = plan({kGB}, true);
  const LoadTiming local = time_load(same, {system, storage, host, cores});
  EXPECT_NEAR(to_seconds(local.read), 32e9 / (1'720'000.0 * 4096), 0.01);
  EXPECT_NEAR(to_seconds(local.copied), 32 / 130.0, 0.01);
  use("s3", 32);
  const LoadTiming remote = time_load(plan({4 * kGB}, true), {system, storage, host, cores});
  EXPECT_NEAR(to_seconds(remote.read), 2 * 128e9 / (100e9 / 8), 0.5)
      << "hashed first, and objects are not in the page cache";
}

TEST_F(SaveTime, PlansCountTheFilesOfEveryRank) {
  use("s3", 3);
  CheckpointPlan one = plan({1, 2, 3}, true);
  one.classes.push_back({{}, 1, 2, 3, 4, 5, 6});
  one.class_of = {0, 1, 0};
  EXPECT_EQ(one.bytes(), 12);
  EXPECT_EQ(one.files(), 6);
}

}  // namespace
}  // namespace trellis::sim
