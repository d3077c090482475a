// Megatron-core's dist_checkpointing for the tensors of any program.
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/output_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/python_oracle.h"
#include "trainer/checkpoint/distributed/dist_checkpoint.h"

namespace trellis::checkpoint::distributed_test {
namespace {

using distributed::DistCheckpoint;
using distributed::LocalNonpersistentObject;
using distributed::ObjectShard;
using distributed::Shard;
using distributed::ShardedTensorFactory;
using distributed::StateDict;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// Every rank of a world of `ranks` does `body` with one checkpoint.
void run(const fs::path& folder, int ranks,
         const std::function<void(runtime::RankContext&, DistCheckpoint&)>& body) {
  DistCheckpoint checkpoint(open_place(folder.string()), ranks);
  runtime::WorldOptions world;
  world.world_size = ranks;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) { body(rank, checkpoint); });
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Shard shard(const std::string& key, const at::Tensor& data, const std::vector<RankOffset>& offsets,
            ReplicaId replica = {}, int prepended = 0) {
  return {ShardedTensor::from_rank_offsets(key, DType::kFloat32, data.sizes().vec(), offsets,
                                           std::move(replica), prepended),
          data};
}

/// Part `rank` of `ranks` of 0, 1, 2, …
at::Tensor part_of_128(int rank, int ranks) {
  return at::arange(128, at::kFloat).chunk(ranks)[static_cast<std::size_t>(rank)].clone();
}

TEST(DistCheckpoint, AGridOfEveryNumberOfRanksLoadsInEveryOther) {
  for (const int from : {1, 2, 4, 8}) {
    const TemporaryDirectory folder;
    run(folder.path(), from, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
      const at::Tensor part = part_of_128(rank.rank(), from);
      checkpoint.save(rank, {{"a", shard("arange", part, {{0, rank.rank(), from}})}});
    });
    for (const int to : {1, 2, 4, 8}) {
      run(folder.path(), to, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
        const at::Tensor part = at::zeros({128 / to});
        StateDict state{{"b", shard("arange", part, {{0, rank.rank(), to}})}};
        checkpoint.load(rank, state);
        EXPECT_TRUE(part.equal(part_of_128(rank.rank(), to))) << from << " to " << to;
      });
    }
  }
}

at::Tensor grid() { return at::arange(128, at::kFloat).view({8, 16}); }

/// The state of rank `r` of 4 = 2 rows × 2 columns, twice; fused gate and up on all of them.
StateDict mixed_state(int r, bool filled) {
  const int row = r / 2 % 2, column = r % 2, copy = r / 4;
  const auto value = [&](const at::Tensor& tensor) {
    return filled ? tensor.clone() : at::zeros_like(tensor);
  };
  const at::Tensor box = grid().narrow(0, 4 * row, 4).narrow(1, 8 * column, 8);
  const auto fused = [&](const std::string& key, double scale) {
    ShardedTensorFactory factory{
        key, value(scale * at::arange(24, at::kFloat).view({12, 2})), {r}, {}, {}};
    factory.build = [](const std::string& prefix, const at::Tensor& data, const ReplicaId& id) {
      return StateDict{{"gate", shard(prefix + "gate", data.narrow(0, 0, 6).clone(), {}, id)},
                       {"up", shard(prefix + "up", data.narrow(0, 6, 6).clone(), {}, id)}};
    };
    factory.merge = [](const StateDict& built) {
      return at::cat(
          {std::get<Shard>(built.at("gate")).data, std::get<Shard>(built.at("up")).data});
    };
    return factory;
  };
  return {{"w", shard("grid", value(box), {{0, row, 2}, {1, column, 2}}, {copy})},
          {"layer", shard("layers.b", value(at::full({4}, row + 1.0, at::kFloat)), {{0, row, 2}},
                          {column, copy}, 1)},
          {"mlp", fused("", 1)},
          {"mlp.exp_avg", fused("optimizer.state.exp_avg.", 10)},
          {"rng", ObjectShard{{"rng", {2}, {row}, {column, copy}},
                              filled ? Value::dict({{"seed", Value(70 + row)}}) : Value()}},
          {"here", LocalNonpersistentObject{Value(r)}},
          {"step", filled ? Value(5) : Value(-1)}};
}

void expect_equal(const StateDict& got, const StateDict& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, item] : expected) {
    const auto& other = got.at(name);
    if (const auto* tensor = std::get_if<Shard>(&item)) {
      EXPECT_TRUE(std::get<Shard>(other).data.equal(tensor->data)) << name;
    }
    if (const auto* fused = std::get_if<ShardedTensorFactory>(&item)) {
      EXPECT_TRUE(std::get<ShardedTensorFactory>(other).data.equal(fused->data)) << name;
    }
    if (const auto* object = std::get_if<ObjectShard>(&item)) {
      EXPECT_EQ(std::get<ObjectShard>(other).data, object->data) << name;
    }
    if (const auto* value = std::get_if<Value>(&item)) {
      EXPECT_EQ(std::get<Value>(other), *value) << name;
    }
  }
}

TEST(DistCheckpoint, TensorsObjectsFactoriesAndCommonValuesComeBack) {
  const TemporaryDirectory folder;
  std::vector<std::int64_t> bytes;
  for (const bool parallel : {false, true}) {
    run(folder.path(), 8, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
      checkpoint.save(rank, mixed_state(rank.rank(), true), parallel);
      StateDict state = mixed_state(rank.rank(), false);
      state.emplace("only here", Value("a common value of the caller"));
      checkpoint.load(rank, state);
      expect_equal(state, mixed_state(rank.rank(), true));
      EXPECT_EQ(std::get<LocalNonpersistentObject>(state.at("here")).data, Value(rank.rank()));
      if (rank.rank() == 0) bytes = checkpoint.plan().bytes_per_rank(8);
    });
    const auto [least, most] = std::ranges::minmax(bytes);
    if (parallel) {
      EXPECT_LE(most - least, 128) << "the largest shard";
    }
  }
  // The last rank of Megatron's reads what the ranks saved.
  const auto theirs = trainer::testing_support::read_oracle(
      "trainer/checkpoint/distributed_oracle.py " + folder.path().string());
  std::vector<double> numbers(128);
  std::iota(numbers.begin(), numbers.end(), 0.0);
  EXPECT_EQ(theirs.at("grid"), numbers);
  EXPECT_THAT(theirs.at("layer"), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(theirs.at("gate"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(theirs.at("rng"), ElementsAre(71));
  EXPECT_THAT(theirs.at("step"), ElementsAre(5));
}

TEST(DistCheckpoint, ShardsThatDoNotCoverATensorAreNamedWithTheCountTensor) {
  const TemporaryDirectory folder;
  EXPECT_THAT(error_of([&] {
                run(folder.path(), 4, [](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
                  const int place = rank.rank() == 2 ? 1 : rank.rank();
                  checkpoint.save(rank, {{"a", shard("a", part_of_128(0, 4), {{0, place, 4}})}});
                });
              }),
              testing::AllOf(HasSubstr("Invalid access pattern"), HasSubstr("got [1, 2, 0, 1]")));
  EXPECT_FALSE(fs::exists(folder.path() / "metadata.json"));
}

TEST(DistCheckpoint, WhatOnlyOneSideHasIsAsTheModeSays) {
  const TemporaryDirectory folder;
  run(folder.path(), 2, [](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
    checkpoint.save(rank, {{"a", shard("a", part_of_128(rank.rank(), 2), {{0, rank.rank(), 2}})},
                           {"more", shard("more", at::ones({2}), {}, {rank.rank()})}});
  });
  for (const auto& [mode, raises] :
       std::vector<std::pair<std::string, std::string>>{{"assume_ok_unexpected", "has no other"},
                                                        {"raise_unexpected", "has no other"},
                                                        {"raise_all", "no rank asks for more"},
                                                        {"log_unexpected", ""},
                                                        {"log_all", ""},
                                                        {"return_unexpected", ""},
                                                        {"return_all", ""},
                                                        {"ignore_all", ""}}) {
    SCOPED_TRACE(mode);
    const auto load = [&] {
      run(folder.path(), 2, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
        const at::Tensor a = at::zeros({64}), other = at::full({3}, 9, at::kFloat);
        StateDict state{{"a", shard("a", a, {{0, rank.rank(), 2}})},
                        {"other", shard("other", other, {}, {rank.rank()})}};
        const KeyDifference got = checkpoint.load(rank, state, mode);
        EXPECT_TRUE(a.equal(part_of_128(rank.rank(), 2)));
        EXPECT_TRUE(other.eq(9).all().item<bool>()) << "keeps its values";
        if (mode == "return_all") {
          EXPECT_THAT(got.missing, ElementsAre("more"));
          EXPECT_THAT(got.unexpected, ElementsAre("other"));
        }
      });
    };
    if (raises.empty()) {
      EXPECT_NO_THROW(load());
    } else {
      EXPECT_THAT(error_of(load), HasSubstr(raises));
    }
  }
  EXPECT_THAT(error_of([&] {
                run(folder.path(), 1, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
                  StateDict none;
                  checkpoint.load(rank, none, "raise");
                });
              }),
              HasSubstr("expected one of assume_ok_unexpected"));
}

TEST(DistCheckpoint, AnotherShapeIsZeroFilledOrCutWhereItIsAllowed) {
  const TemporaryDirectory folder;
  run(folder.path(), 2, [](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
    checkpoint.save(rank, {{"a", shard("a", part_of_128(rank.rank(), 2), {{0, rank.rank(), 2}})}});
  });
  for (const bool allowed : {false, true}) {
    for (const std::int64_t size : {100, 160}) {
      const at::Tensor tensor = at::full({size}, 7, at::kFloat);
      const std::string error = error_of([&] {
        run(folder.path(), 1, [&](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
          StateDict state{{"a", shard("a", tensor, {})}};
          std::get<Shard>(state.at("a")).what.allow_shape_mismatch = allowed;
          checkpoint.load(rank, state);
        });
      });
      if (!allowed) {
        EXPECT_THAT(error, HasSubstr("a"));
        EXPECT_NE(error, "no error");
        continue;
      }
      at::Tensor expected = at::zeros({size});
      const std::int64_t both = std::min<std::int64_t>(size, 128);
      expected.narrow(0, 0, both).copy_(at::arange(both));
      EXPECT_TRUE(tensor.equal(expected)) << size;
    }
  }
}

TEST(DistCheckpoint, MetadataIsLastAndAnIncompleteFolderIsNone) {
  const TemporaryDirectory folder;
  const Place place = open_place(folder.path().string());
  DistCheckpoint checkpoint(place, 1);
  std::vector<std::string> files;
  place.storage->faults().set_hook([&](const FaultPoint& point) {
    if (point.kind == FaultPoint::Kind::kRename) files.push_back(fs::path(point.path).filename());
    if (point.path.ends_with("metadata.json")) throw OutputError("disk on fire");
  });
  runtime::WorldOptions world;
  EXPECT_THAT(error_of([&] {
                runtime::run_ranks(world, [&](runtime::RankContext& rank) {
                  checkpoint.save(rank, {{"a", shard("a", at::ones({2}), {})}});
                });
              }),
              HasSubstr("disk on fire"));
  EXPECT_THAT(files, ElementsAre("__0_0.distcp", "common.pt", ".metadata"));
  EXPECT_THAT(error_of([&] {
                run(folder.path(), 1, [](runtime::RankContext& rank, DistCheckpoint& again) {
                  StateDict state{{"a", shard("a", at::ones({2}), {})}};
                  again.load(rank, state);
                });
              }),
              HasSubstr("expected a distributed checkpoint"));
}

TEST(DistCheckpoint, OneThatIsReplacedIsNoneUntilTheNewOneIsComplete) {
  const TemporaryDirectory folder;
  const auto save = [](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
    checkpoint.save(rank, {{"a", shard("a", at::ones({2}), {})}});
  };
  const auto load = [](runtime::RankContext& rank, DistCheckpoint& checkpoint) {
    StateDict state{{"a", shard("a", at::zeros({2}), {})}};
    checkpoint.load(rank, state);
  };
  run(folder.path(), 1, save);
  const Place place = open_place(folder.path().string());
  place.storage->faults().set_hook([](const FaultPoint& point) {
    const bool is_rename = point.kind == FaultPoint::Kind::kRename;
    if (is_rename && point.path.ends_with("common.pt")) throw OutputError("disk on fire");
  });
  DistCheckpoint again(place, 1);
  EXPECT_THAT(error_of([&] {
                runtime::run_ranks({}, [&](runtime::RankContext& rank) { save(rank, again); });
              }),
              HasSubstr("disk on fire"));
  EXPECT_THAT(error_of([&] { run(folder.path(), 1, load); }),
              HasSubstr("expected a distributed checkpoint"));
  run(folder.path(), 1, save);
  run(folder.path(), 1, load);
}

}  // namespace
}  // namespace trellis::checkpoint::distributed_test
