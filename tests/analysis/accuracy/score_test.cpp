#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/score.h"

namespace trellis::analysis {
namespace {

ScoredRow scored(const std::string& id, double published, double model,
                 RowUse use = RowUse::kTest) {
  PublishedRow row;
  row.id = id;
  row.group = "g";
  row.use = use;
  row.time_us = published;
  return {row, model};
}

TEST(Score, PercentilesLieBetweenRanks) {
  const Summary s = summarize({0.1, -0.3, 0.2, -0.4, 0.0});
  EXPECT_EQ(s.rows, 5u);
  EXPECT_DOUBLE_EQ(s.median, 0.2);
  EXPECT_DOUBLE_EQ(s.p90, 0.3 + 0.6 * (0.4 - 0.3));
  EXPECT_DOUBLE_EQ(s.worst, 0.4);
  EXPECT_EQ(summarize({}).rows, 0u);
}

TEST(Score, TheErrorIsSignedAgainstThePublishedTime) {
  EXPECT_DOUBLE_EQ(scored("a", 10, 12).error(), 0.2);
  EXPECT_DOUBLE_EQ(scored("a", 10, 8).error(), -0.2);
}

TEST(Score, TheWorstRowComesFirstAndUsesAreSummedUpSeparately) {
  const std::vector<ScoredRow> rows = {scored("good", 10, 10.1), scored("bad", 10, 4),
                                       scored("fitted", 10, 11, RowUse::kFit)};
  const std::string text = accuracy_text("kernels", rows, {});
  EXPECT_LT(text.find("bad"), text.find("fitted"));
  EXPECT_LT(text.find("fitted"), text.find("good"));
  const nlohmann::json json = accuracy_json("kernels", rows, {});
  double fit_worst = -1;
  for (const auto& s : json["summaries"]) {
    if (s["group"] == "all, fit rows") fit_worst = s["worst"];
  }
  EXPECT_NEAR(fit_worst, 0.1, 1e-12);
  EXPECT_EQ(json["rows"].size(), 3u);
}

}  // namespace
}  // namespace trellis::analysis
