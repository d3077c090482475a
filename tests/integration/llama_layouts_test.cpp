// Every layout trains the same model: eight steps of a small Llama against one rank, four of them
// after the warm-up.
#include <cmath>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"

namespace trellis::trainer::llama_layouts_test {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

constexpr std::int64_t kSteps = 8;

struct Precision {
  const char* type;
  double tolerance;
};

/// The outcome of one rank, computed once per precision.
const Outcome& one_rank(const std::string& precision) {
  static std::map<std::string, Outcome> known;
  const auto found = known.find(precision);
  if (found != known.end()) return found->second;
  return known.emplace(precision, train(small_llama({}, precision, kSteps), {})).first->second;
}

class LlamaLayouts : public testing::TestWithParam<std::tuple<Layout, Precision>> {};

TEST_P(LlamaLayouts, EqualsOneRank) {
  const auto& [layout, precision] = GetParam();
  const Outcome outcome = train(small_llama(layout, precision.type, kSteps), layout);
  ASSERT_EQ(outcome.steps.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LE(worst_error(outcome, one_rank(precision.type)), precision.tolerance);
  EXPECT_TRUE(outcome.replicas_equal) << "ranks that hold the same weight must hold the same bits";
}

std::string name_of(const testing::TestParamInfo<std::tuple<Layout, Precision>>& info) {
  const auto& [layout, precision] = info.param;
  return "TP" + std::to_string(layout.tp) + "PP" + std::to_string(layout.pp) + "DP" +
         std::to_string(layout.dp) + (layout.vpp > 1 ? "VPP" + std::to_string(layout.vpp) : "") +
         (layout.sequence_parallel ? "_SP" : "") + (layout.zero1 ? "_ZeRO1" : "") + "_" +
         precision.type;
}

constexpr Precision kFp64{"fp64", 1e-10}, kFp32{"fp32", 1e-5};

INSTANTIATE_TEST_SUITE_P(
    AllLayouts, LlamaLayouts,
    testing::Combine(testing::Values(Layout{1, 1, 1, false, true}, Layout{2, 1, 1, false, true},
                                     Layout{2, 1, 1, true, true}, Layout{4, 1, 1, true, false},
                                     Layout{1, 2, 1, false, true}, Layout{1, 4, 1, false, true},
                                     Layout{1, 1, 2, false, true}, Layout{1, 1, 2, false, false},
                                     Layout{1, 1, 4, false, true}, Layout{2, 2, 1, true, true},
                                     Layout{1, 2, 2, false, true}, Layout{2, 2, 2, true, true},
                                     Layout{2, 2, 2, false, true}, Layout{2, 2, 2, true, false},
                                     Layout{4, 1, 2, true, true}, Layout{1, 4, 2, false, true},
                                     Layout{4, 2, 1, true, true}, Layout{1, 1, 8, false, true},
                                     Layout{1, 2, 1, false, true, 2},
                                     Layout{2, 2, 2, true, true, 2},
                                     Layout{1, 2, 2, false, false, 2}),
                     testing::Values(kFp64)),
    name_of);

// One layout of each kind of group, and one of all of them: what a layout does to the order of sums
// shows in fp64, what fp32 adds is rounding.
INSTANTIATE_TEST_SUITE_P(
    SomeLayouts, LlamaLayouts,
    testing::Combine(testing::Values(Layout{2, 1, 1, true, true}, Layout{4, 1, 1, true, false},
                                     Layout{1, 4, 1, false, true}, Layout{1, 1, 8, false, true},
                                     Layout{1, 1, 2, false, false}, Layout{2, 2, 2, true, true, 2}),
                     testing::Values(kFp32)),
    name_of);

TEST(LlamaTraining, TheLossFallsAndMixedPrecisionFollowsFp32) {
  constexpr std::int64_t kLong = 20;
  const Outcome fp32 = train(small_llama({}, "fp32", kLong), {});
  const Layout layout{2, 2, 2, true, true};
  const Outcome mixed = train(small_llama(layout, "mixed_precision", kLong), layout);
  EXPECT_NEAR(fp32.steps.front().loss, std::log(51.0),
              0.6);  // random tokens: the start is near a uniform guess
  EXPECT_LT(fp32.steps.back().loss, fp32.steps.front().loss);
  for (std::size_t i = 0; i < fp32.steps.size(); ++i)
    EXPECT_NEAR(mixed.steps[i].loss, fp32.steps[i].loss, 0.02 * fp32.steps[i].loss) << i;
  EXPECT_TRUE(mixed.replicas_equal);
}

TEST(LlamaTraining, TheSameRunTwiceGivesTheSameBits) {
  const Layout layout{2, 2, 2, true, true};
  const Outcome first = train(small_llama(layout, "fp32", 3), layout);
  const Outcome second = train(small_llama(layout, "fp32", 3), layout);
  EXPECT_EQ(worst_error(first, second), 0);
}

}  // namespace
}  // namespace trellis::trainer::llama_layouts_test
