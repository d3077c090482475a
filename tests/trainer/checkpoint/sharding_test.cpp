// Descriptions of shards, their validation, and who moves what: all without data.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"
#include "trainer/files/checkpoint/lifecycle/retention.h"
#include "trainer/files/checkpoint/plan/read_plan.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"
#include "trainer/files/checkpoint/sharding/validate.h"

namespace trellis::checkpoint::sharding_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// Megatron's example: 128 elements over `ranks` ranks.
std::vector<ShardedTensor> grid_of(int ranks) {
  std::vector<ShardedTensor> shards;
  for (int rank = 0; rank < ranks; ++rank)
    shards.push_back(ShardedTensor::from_rank_offsets("arange", DType::kFloat32, {128 / ranks},
                                                      {{0, rank, ranks}}));
  return shards;
}

TEST(ShardedTensor, FromRankOffsetsGivesPlaceAndGrid) {
  const ShardedTensor shard = ShardedTensor::from_rank_offsets(
      "layers.weight", DType::kBFloat16, {16, 32}, {{0, 3, 8}, {1, 1, 2}}, {0, 1}, 1);
  EXPECT_EQ(shard.global_shape, (Shape{8, 32, 32}));
  EXPECT_EQ(shard.global_offset, (Shape{3, 16, 0}));
  EXPECT_EQ(shard.axis_fragmentations, (Shape{8, 2, 1}));
  EXPECT_EQ(shard.box().shape, (Shape{1, 16, 32}));
  EXPECT_FALSE(is_main_replica(shard.replica_id));
  EXPECT_THAT(error_of([] {
                (void)ShardedTensor::from_rank_offsets("k", DType::kFloat32, {4}, {{0, 2, 2}});
              }),
              HasSubstr("sharded tensor k: axis 0, part 2 of 2"));
}

TEST(ValidateSharding, AcceptsEachElementOnce) {
  for (const int ranks : {1, 2, 4, 8}) EXPECT_NO_THROW(validate_sharding(grid_of(ranks)));
  std::vector<ShardedTensor> with_copies = grid_of(4);
  for (ShardedTensor copy : grid_of(4)) {
    copy.replica_id = {1};
    with_copies.push_back(copy);
  }
  EXPECT_NO_THROW(validate_sharding(with_copies));
}

TEST(ValidateSharding, NamesMissingAndDoubleShardsWithTheCountTensor) {
  std::vector<ShardedTensor> shards = grid_of(4);
  shards[2] = shards[1];
  EXPECT_THAT(error_of([&] { validate_sharding(shards); }),
              AllOf(HasSubstr("sharded tensor arange: Invalid access pattern"),
                    HasSubstr("got [1, 2, 0, 1]")));
  shards.erase(shards.begin());
  EXPECT_THAT(error_of([&] { validate_sharding(shards); }), HasSubstr("[0, 2, 0, 1]"));
}

TEST(ValidateSharding, IrregularShardsAreCheckedOnTheirBorders) {
  const auto rows = [](std::int64_t first, std::int64_t count) {
    ShardedTensor shard;
    shard.key = "w";
    shard.local_shape = {count, 4};
    shard.global_shape = {10, 4};
    shard.global_offset = {first, 0};
    return shard;
  };
  EXPECT_NO_THROW(validate_sharding(std::vector{rows(0, 3), rows(3, 5), rows(8, 2)}));
  EXPECT_THAT(error_of([&] { validate_sharding(std::vector{rows(0, 4), rows(3, 7)}); }),
              HasSubstr("[[1], [2], [1]]"));
  EXPECT_THAT(error_of([&] { validate_sharding(std::vector{rows(0, 4), rows(8, 3)}); }),
              HasSubstr("is no part of the global shape [10, 4]"));
}

TEST(ValidateSharding, RanksMustAgree) {
  std::vector<ShardedTensor> shards = grid_of(2);
  shards[1].dtype = DType::kFloat64;
  EXPECT_THAT(error_of([&] { validate_sharding(shards); }),
              HasSubstr("ranks disagree: dtype float32 and float64"));
}

TEST(ValidateSharding, ObjectsAreCompleteAndUnique) {
  const auto object = [](std::int64_t pp, std::int64_t tp, int copy) {
    return ShardedObject{"rng_state", {2, 2}, {pp, tp}, {copy}};
  };
  std::vector objects{object(0, 0, 0), object(0, 1, 0), object(1, 0, 0), object(1, 1, 0),
                      object(1, 1, 1)};
  EXPECT_NO_THROW(validate_sharding(objects));
  EXPECT_EQ(objects[1].unique_key(), "rng_state/shard_0.1_2.2");
  objects[1] = object(0, 1, 1);
  EXPECT_THAT(error_of([&] { validate_sharding(objects); }), HasSubstr("got [[1, 0], [1, 1]]"));
}

TEST(TransferPlan, IsGreedyBalancedAndIndependentOfTheOrder) {
  std::vector<Transfer> transfers;
  for (int i = 0; i < 40; ++i)
    transfers.push_back({"t" + std::to_string(i), 100 + 37 * (i % 11), {0, 1, 2, 3}});
  transfers.push_back({"own", 1000, {2}});
  const TransferPlan plan = distribute(transfers);
  EXPECT_EQ(plan.rank_of("own"), 2);
  const std::vector<std::int64_t> bytes = plan.bytes_per_rank(4);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, 1000) << "the largest transfer";
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}),
            std::accumulate(transfers.begin(), transfers.end(), std::int64_t{0},
                            [](std::int64_t sum, const Transfer& t) { return sum + t.bytes; }));
  std::reverse(transfers.begin(), transfers.end());
  EXPECT_EQ(distribute(transfers), plan);
  EXPECT_EQ(distribute(transfers).hash(), plan.hash());
  EXPECT_THAT(plan.to_string(), HasSubstr("rank 2  1000 B  own\n"));
  transfers.front().bytes += 1;
  EXPECT_NE(distribute(transfers).hash(), plan.hash());
}

ShardedPart wanted(Shape global, Shape offset, Shape shape) {
  ShardedPart part;
  part.tensor.key = "w";
  part.tensor.global_shape = std::move(global);
  part.tensor.global_offset = std::move(offset);
  part.tensor.local_shape = shape;
  part.local = {Shape(shape.size(), 0), shape};
  return part;
}

TEST(ReadPlan, TakesEachElementFromTheShardThatHasIt) {
  const SourceIndex index{{"w", {{0, {8}, {0}, {{0}, {4}}}, {1, {8}, {4}, {{2}, {4}}}}}};
  const PartReads reads = plan_reads(wanted({8}, {2}, {4}), "w", index);
  EXPECT_THAT(reads.copies,
              ElementsAre(CopyStep{0, {{2}, {2}}, {0}}, CopyStep{1, {{2}, {2}}, {2}}));
}

TEST(ReadPlan, MissingShardsAndOtherShapesAreErrorsExceptForPaddedVocabularies) {
  const SourceIndex index{{"w", {{0, {8}, {0}, {{0}, {4}}}, {1, {8}, {4}, {{0}, {4}}}}}};
  EXPECT_THAT(error_of([&] { (void)plan_reads(wanted({12}, {0}, {6}), "w", index); }),
              HasSubstr("w has the shape [8], the model expects [12]"));
  ShardedPart longer = wanted({12}, {6}, {6});
  longer.tensor.allow_shape_mismatch = true;
  EXPECT_EQ(plan_reads(longer, "w", index).elements, 2);
  const SourceIndex half{{"w", {{0, {8}, {0}, {{0}, {4}}}}}};
  EXPECT_THAT(error_of([&] { (void)plan_reads(wanted({8}, {2}, {4}), "w", half); }),
              HasSubstr("holds 2 elements, expected 4; a shard is missing"));
}

TEST(CheckpointName, IsLightnings) {
  const NameMetrics metrics{{"step", 5}, {"consumed_samples", 160}, {"val_loss", 2.34567}};
  EXPECT_EQ(checkpoint_name("hf_llama3_8B--{step}-{consumed_samples}", metrics, true),
            "hf_llama3_8B--step=5-consumed_samples=160.0");
  EXPECT_EQ(checkpoint_name("m--{val_loss:.4f}-{epoch}", metrics, true),
            "m--val_loss=2.3457-epoch=nan");
  EXPECT_EQ(checkpoint_name("m-{step:06d}", metrics, false), "m-000005");
  EXPECT_THAT(error_of([&] { (void)checkpoint_name("m-{step", metrics, true); }),
              HasSubstr("a brace is not closed"));
  EXPECT_THAT(error_of([&] { (void)checkpoint_name("../{step}", metrics, true); }),
              HasSubstr("expected the name of a folder"));
  for (const char* wide : {"{step:1000000000}", "{val_loss:.300f}", "{x:0999d}"})
    EXPECT_THAT(error_of([&] { (void)checkpoint_name(wide, metrics, true); }),
                HasSubstr("wider than the 255 characters"));
  EXPECT_THAT(error_of([&] { (void)checkpoint_name("{val_loss:zz}", metrics, true); }),
              HasSubstr("the format zz of val_loss is none"));
}

TEST(Retention, KeepsTheBestAndTheNewestLast) {
  const std::vector<KeptCheckpoint> kept{{"a.ckpt", 10, 1, 3.0},      {"b.ckpt", 20, 2, 1.0},
                                         {"c.ckpt", 30, 3, 2.0},      {"d.ckpt", 40, 4, {}},
                                         {"a-last.ckpt", 30, 5, 0.5}, {"b-last.ckpt", 40, 6, 9.0}};
  EXPECT_THAT(tags_to_remove(kept, {2, false}), ElementsAre("d.ckpt", "a.ckpt", "a-last.ckpt"));
  EXPECT_THAT(tags_to_remove(kept, {1, true}),
              testing::UnorderedElementsAre("b.ckpt", "c.ckpt", "d.ckpt", "a-last.ckpt"));
  EXPECT_THAT(tags_to_remove(kept, {-1, false}), ElementsAre("a-last.ckpt"));
  EXPECT_TRUE(is_worth_keeping(kept, 1.5, {2, false}));
  EXPECT_FALSE(is_worth_keeping(kept, 2.5, {2, false}));
  EXPECT_FALSE(is_worth_keeping(kept, 0.1, {0, false}));
  EXPECT_TRUE(is_worth_keeping(kept, {}, {-1, false}));
}

}  // namespace
}  // namespace trellis::checkpoint::sharding_test
