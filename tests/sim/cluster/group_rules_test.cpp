#include "sim/cluster/group_rules.h"
#include "sim/config/load_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CollectiveKind kSum = CollectiveKind::kAllReduce;

std::vector<int> strided(int first, int count, int stride) {
  std::vector<int> cores;
  for (int i = 0; i < count; ++i) cores.push_back(first + i * stride);
  return cores;
}

TEST(GroupRules, AMemberExistsAndIsThereOnce) {
  const Topology t(load_system("trn1.32xlarge"));
  EXPECT_THAT(why_illegal(t, kSum, {}), HasSubstr("no members"));
  EXPECT_THAT(why_illegal(t, kSum, {0, 32}),
              AllOf(HasSubstr("core 32"), HasSubstr("32 logical cores, 0 to 31")));
  EXPECT_THAT(why_illegal(t, kSum, {-1, 0}), HasSubstr("core -1"));
  EXPECT_THAT(why_illegal(t, kSum, {3, 7, 3}), HasSubstr("core 3 is a member twice"));
  EXPECT_THAT(why_illegal(t, CollectiveKind::kSendRecv, {3, 3}), HasSubstr("twice"));
  EXPECT_THAT(why_illegal(t, kSum, {5}), IsEmpty());
}

/// Every group of every layout that fills the cluster: tensor parallel ranks are adjacent, then
/// data, then pipeline.
TEST(GroupRules, GroupsOfEveryFullLayoutAreLegal) {
  for (const auto& [instance, nodes] :
       {std::pair("trn1.32xlarge", 1), std::pair("trn1.32xlarge", 4), std::pair("trn2.48xlarge", 2),
        std::pair("trn2u.48xlarge", 4), std::pair("trn3-gen2", 36)}) {
    const Topology t(load_system(instance, nodes));
    for (const int tp : {1, 2, 4, 8, 16, 32}) {
      for (int dp = 1; dp <= t.cores() / tp; ++dp) {
        if (t.cores() % (tp * dp) != 0) continue;
        const int pp = t.cores() / (tp * dp);
        SCOPED_TRACE(std::string(instance) + " TP " + std::to_string(tp) + " DP " +
                     std::to_string(dp));
        for (int r = 0; r < t.cores(); r += 7) {
          EXPECT_THAT(why_illegal(t, kSum, strided(r / tp * tp, tp, 1)), IsEmpty());
          EXPECT_THAT(why_illegal(t, kSum, strided(r % tp + r / (tp * dp) * tp * dp, dp, tp)),
                      IsEmpty());
          EXPECT_THAT(
              why_illegal(t, CollectiveKind::kBroadcast, strided(r % (tp * dp), pp, tp * dp)),
              IsEmpty());
        }
      }
    }
    EXPECT_THAT(why_illegal(t, CollectiveKind::kBarrier, strided(0, t.cores(), 1)), IsEmpty());
  }
}

TEST(GroupRules, OverEfaEveryNodeHoldsTheSameLocalCores) {
  const Topology t(load_system("trn2.48xlarge", 2));
  EXPECT_THAT(why_illegal(t, kSum, {0, 1, 64, 65}), IsEmpty());
  EXPECT_THAT(why_illegal(t, kSum, {0, 1, 64}),
              AllOf(HasSubstr("node 0"), HasSubstr("node 1 with 0:")));
  EXPECT_THAT(why_illegal(t, kSum, {0, 65}), HasSubstr("same local cores"));
  EXPECT_THAT(why_illegal(t, CollectiveKind::kSendRecv, {0, 65}),
              IsEmpty());  // a transfer between pipeline stages
  const Topology ultra(load_system("trn2u.48xlarge", 4));
  EXPECT_THAT(why_illegal(ultra, kSum, {0, 65}), IsEmpty());  // no EFA on the way
}

TEST(GroupRules, AdjacentCoresOfTrn1HaveDocumentedDegrees) {
  const Topology t(load_system("trn1.32xlarge", 2));
  for (const int size : {1, 2, 4, 8, 16, 32})
    EXPECT_THAT(why_illegal(t, kSum, strided(0, size, 1)), IsEmpty()) << size;
  for (const int size : {3, 5, 12, 24, 31})
    EXPECT_THAT(why_illegal(t, kSum, strided(0, size, 1)), HasSubstr("2, 4, 8, 16 and 32")) << size;
  EXPECT_THAT(why_illegal(t, kSum, strided(0, 16, 2)), IsEmpty());
  EXPECT_THAT(why_illegal(t, CollectiveKind::kBarrier, strided(0, 12, 1)), IsEmpty());
  EXPECT_THAT(why_illegal(Topology(load_system("trn2.48xlarge")), kSum, strided(0, 12, 1)),
              IsEmpty());
}

}  // namespace
}  // namespace trellis::sim
