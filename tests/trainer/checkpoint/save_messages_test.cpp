// The messages between processes about a save read back as they were.
#include <random>

#include <gtest/gtest.h>

#include "trainer/checkpoint/engine/save_messages.h"

namespace trellis::checkpoint::native {
namespace {

using Random = std::mt19937;

std::int64_t number(Random& random, std::int64_t most) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
}

ShardedTensor random_shard(Random& random) {
  const std::int64_t parts = 1 + number(random, 4), rows = 1 + number(random, 9);
  ShardedTensor shard = ShardedTensor::from_rank_offsets(
      "layers." + std::to_string(number(random, 100)) + ".\"weight\"\n", DType::kBFloat16,
      {rows, 3}, {{0, number(random, parts), parts}}, {static_cast<int>(number(random, 3)), 0});
  shard.allow_shape_mismatch = number(random, 2) == 0;
  return shard;
}

StoredTensor random_tensor(Random& random, const std::string& file) {
  const std::int64_t rows = 1 + number(random, 9);
  StoredTensor tensor{file, {"state", number(random, 50)}, DType::kFloat32, {rows, 4}, {}};
  if (rows % 2 == 0) tensor.entry_offset = number(random, 900), tensor.entry_length = 64;
  tensor.parts.push_back({"key", {rows * 2, 4}, {rows, 0}, {{0, 0}, {rows, 4}}});
  return tensor;
}

TEST(SaveMessages, OffersReadBack) {
  Random random(1);
  for (int round = 0; round < 50; ++round) {
    SaveOffer offer;
    for (std::int64_t i = number(random, 5); i > 0; --i) {
      const std::string path = "model/" + std::to_string(i) + ".pt";
      offer.files[path] = {path,
                           number(random, 1'000'000'000'000),
                           {0, static_cast<int>(i)},
                           number(random, 2) == 0};
      offer.shards.push_back(random_shard(random));
    }
    EXPECT_EQ(SaveOffer::from_text(offer.to_text()), offer);
  }
}

TEST(SaveMessages, WhatWasWrittenReadsBack) {
  Random random(2);
  for (int round = 0; round < 50; ++round) {
    Written written;
    for (std::int64_t i = number(random, 5); i > 0; --i) {
      const std::string path = "optim/" + std::to_string(i) + ".pt";
      written.files[path] = {number(random, 1'000'000), "0123456789abcdef0123456789abcdef"};
      written.tensors.push_back(random_tensor(random, path));
    }
    written.chunks.push_back({"decoder.layers.\"a\"",
                              {.dtype = DType::kBFloat16, .shape = {4, 2, 3}},
                              {{number(random, 4), 0, 0}, {1, 2, 3}, {"__0_1.distcp", 64, 900}}});
    written.states.push_back({"base_state.a.exp_avg|tp-0001",
                              {.dtype = DType::kFloat32, .shape = {8}},
                              {{number(random, 4)}, {4}, {"__1_0.distcp", 900, 64}}});
    written.objects["shape_info.3"] = {"__0_0.distcp", number(random, 900), 10};
    written.chunk_error = round % 3 == 0 ? "" : "disk on fire";
    written.error = round % 2 == 0 ? "" : "process 1: disk\nfull";
    EXPECT_EQ(Written::from_text(written.to_text()), written);
  }
}

TEST(SaveMessages, TheFirstErrorIsKept) {
  Written all, bad, worse;
  bad.error = "first";
  worse.error = "second";
  all.add(bad);
  all.add(worse);
  EXPECT_EQ(all.error, "first");
}

}  // namespace
}  // namespace trellis::checkpoint::native
