#include "trainer/config/simulated_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::trainer {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Le;

double sum_of(const std::vector<double>& shares) {
  return std::accumulate(shares.begin(), shares.end(), 0.0);
}

TEST(Routing, BalancedHasNoShares) { EXPECT_THAT(parse_routing("balanced", 8, 2), IsEmpty()); }

TEST(Routing, ZipfFallsWithThePowerOfTheRank) {
  const std::vector<double> shares = parse_routing("zipf:0.5", 16, 1);
  EXPECT_NEAR(sum_of(shares), 1, 1e-12);
  for (int e = 0; e < 16; ++e)
    EXPECT_NEAR(shares[static_cast<std::size_t>(e)] / shares[0], 1 / std::sqrt(e + 1), 1e-12);
}

TEST(Routing, ATokenPicksAnExpertOnce) {
  const std::vector<double> steep = parse_routing("zipf:3", 8, 2);
  EXPECT_NEAR(steep[0], 0.5, 1e-12) << "1/1.2 of the picks without the limit";
  EXPECT_NEAR(sum_of(steep), 1, 1e-12);
  EXPECT_THAT(steep, Each(Le(0.5 + 1e-12)));
  EXPECT_NEAR(steep[1] / steep[2], std::pow(1.5, 3), 1e-9) << "the others keep their proportions";
  const std::vector<std::int64_t> picks = picks_of_experts(steep, 8, 1000, 2);
  EXPECT_EQ(picks[0], 1000);
  EXPECT_THAT(picks, Each(Le(1000)));
}

TEST(Routing, HotExpertsLeaveTheRestToTheOthers) {
  EXPECT_THAT(parse_routing("hot:1=0.4", 4, 2),
              ElementsAre(testing::DoubleNear(0.2, 1e-12), 0.4, testing::DoubleNear(0.2, 1e-12),
                          testing::DoubleNear(0.2, 1e-12)));
}

TEST(Routing, PicksAreAllTokensTimesK) {
  for (const char* text : {"balanced", "zipf:1", "zipf:2.5", "hot:6=0.3", "hot:0=0"}) {
    for (const std::int64_t tokens : {1, 7, 4096}) {
      const auto picks = picks_of_experts(parse_routing(text, 7, 3), 7, tokens, 3);
      EXPECT_EQ(std::accumulate(picks.begin(), picks.end(), std::int64_t{0}), 3 * tokens) << text;
      EXPECT_LE(*std::ranges::max_element(picks), tokens) << text;
    }
  }
  EXPECT_THAT(picks_of_experts({}, 4, 5, 2), ElementsAre(3, 3, 2, 2));
}

TEST(Routing, BadTextsAreNamedWithTheirNumbers) {
  const auto problem = [](const std::string& text) -> std::string {
    try {
      (void)parse_routing(text, 8, 2);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem("even"),
            "--routing even: expected balanced, zipf:S, hot:EXPERT=SHARE or trace:FILE");
  EXPECT_EQ(problem("zipf:-1"), "--routing zipf:-1: expected zipf:S with S from 0 to 100");
  EXPECT_EQ(problem("zipf:nan"), "--routing zipf:nan: expected zipf:S with S from 0 to 100");
  EXPECT_EQ(problem("hot:3"), "--routing hot:3: expected hot:EXPERT=SHARE, as hot:3=0.4");
  EXPECT_EQ(problem("hot:8=0.2"), "--routing hot:8=0.2: expected an expert from 0 to 7, got 8");
  EXPECT_EQ(problem("hot:0=0.6"),
            "--routing hot:0=0.6: a token picks an expert once: expected a share of the picks from "
            "0 to 0.5 with top_k 2, got 0.6");
}

}  // namespace
}  // namespace trellis::trainer
