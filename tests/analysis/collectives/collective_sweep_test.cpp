#include "analysis/collectives/collective_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace trellis::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CollectiveSweep request(const char* op, std::int64_t min, std::int64_t max) {
  CollectiveSweep r;
  r.op = op;
  r.instance = "trn1.32xlarge";
  r.min = Bytes(min);
  r.max = Bytes(max);
  return r;
}

std::pair<int, std::string> failure(const CollectiveSweep& r) {
  try {
    (void)sweep(r);
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {0, ""};
}

std::vector<std::int64_t> sizes(const CollectiveSweepResult& result) {
  std::vector<std::int64_t> all;
  for (const CollectiveSweepRow& row : result.rows) all.push_back(row.size.value);
  return all;
}

TEST(CollectiveSweep, GoesFromMinToMaxByTheFactor) {
  CollectiveSweep r = request("allr", 1 << 10, 1 << 20);
  r.factor = 32;
  EXPECT_THAT(sizes(sweep(r)), ElementsAre(1 << 10, 1 << 15, 1 << 20));
}

TEST(CollectiveSweep, RoundsDownToWholeElementsPerRankAndSaysSo) {
  const CollectiveSweepResult result = sweep(request("all_gather", 1000, 1000));
  EXPECT_THAT(sizes(result), ElementsAre(896));
  EXPECT_EQ(result.rows[0].count, 224);
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("1000 B rounded down to 896 B")));
}

TEST(CollectiveSweep, LeavesOutSizesThatNoRankHasAPartOf) {
  const CollectiveSweepResult result = sweep(request("all_gather", 64, 128));
  EXPECT_THAT(sizes(result), ElementsAre(128));
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("64 B left out")));
}

TEST(CollectiveSweep, ASmallFactorRepeatsNoSize) {
  CollectiveSweep r = request("all_reduce", 8, 24);
  r.factor = 1.1;
  EXPECT_THAT(sizes(sweep(r)), ElementsAre(8, 12, 16, 20));
}

TEST(CollectiveSweep, AFactorThatNeverEndsIsRefused) {
  CollectiveSweep r = request("all_reduce", 8, 1 << 10);
  for (const double factor : {1.0000001, 1.0, 0.5, -2.0, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity()}) {
    r.factor = factor;
    EXPECT_THAT(failure(r).second, HasSubstr("--factor")) << factor;
  }
}

TEST(CollectiveSweep, SpreadsRanksOverTheNodes) {
  CollectiveSweep r = request("all_reduce", 1 << 20, 1 << 20);
  r.load.nodes = 2;
  r.ranks = 4;
  EXPECT_THAT(sweep(r).cores, ElementsAre(0, 1, 32, 33));
}

TEST(CollectiveSweep, NamesTheMistake) {
  CollectiveSweep r = request("all_redcue", 8, 8);
  EXPECT_THAT(failure(r).second, HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(failure(request("all_reduce", 0, 8)).second, HasSubstr("expected at least 4 B"));
  EXPECT_THAT(failure(request("all_reduce", 1, 8)).second, HasSubstr("holds no element of fp32"));
  EXPECT_THAT(failure(request("all_reduce", 64, 8)).second, HasSubstr("below --min"));
  EXPECT_THAT(failure(request("all_gather", 8, 64)).second, HasSubstr("expected at least 128 B"));
  r = request("all_reduce", 8, 8);
  for (const int ranks : {0, -1, 33}) {
    r.ranks = ranks;
    EXPECT_THAT(failure(r).second, HasSubstr("expected 1 to 32"));
  }
  r.ranks = 2;
  r.dtype = "fp23";
  EXPECT_THAT(failure(r).second, HasSubstr("unknown type"));
}

TEST(CollectiveSweep, MoreRanksThanAPlanCanHaveAreRefused) {
  CollectiveSweep r = request("all_reduce", 1 << 20, 1 << 20);
  r.load.nodes = 257;
  EXPECT_THAT(failure(r).second, HasSubstr("8224 ranks: expected at most 8192"));
}

TEST(CollectiveSweep, BuffersAboveHbmDoNotFit) {
  EXPECT_EQ(failure(request("all_reduce", 1LL << 34, 1LL << 34)).first,
            static_cast<int>(ExitCode::kDoesNotFit));
  for (const char* op :
       {"all_reduce", "all_gather", "all_to_all", "broadcast"}) {  // twice of it is no int64
    EXPECT_EQ(failure(request(op, 9'000'000'000'000'000'000, 9'000'000'000'000'000'000)).first,
              static_cast<int>(ExitCode::kDoesNotFit))
        << op;
  }
  EXPECT_EQ(failure(request("all_reduce", 1LL << 33, 1LL << 33)).first,
            0);  // twice 8 GiB is what a core has
}

}  // namespace
}  // namespace trellis::analysis
