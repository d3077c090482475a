// ROUGE and exact match on texts whose scores can be counted by hand.
#include <gtest/gtest.h>

#include "trainer/evaluation/text_metrics.h"

namespace trellis::trainer {
namespace {

TEST(TextMetrics, ExactMatchIgnoresWhiteSpaceAroundTheTexts) {
  EXPECT_TRUE(exact_match(" a b\n", "a b"));
  EXPECT_TRUE(exact_match("", " "));
  EXPECT_FALSE(exact_match("a  b", "a b"));
  EXPECT_FALSE(exact_match("A b", "a b"));
}

TEST(TextMetrics, RougeCountsWordsPairsAndTheLongestSubsequence) {
  // 5 and 6 words; shared: the, cat, sat, mat; pairs: "the cat", "cat sat".
  const Rouge found = rouge("The cat sat, mat the!", "the cat sat on my mat");
  EXPECT_DOUBLE_EQ(found.rouge1, 2 * (4.0 / 5) * (4.0 / 6) / (4.0 / 5 + 4.0 / 6));
  EXPECT_DOUBLE_EQ(found.rouge2, 2 * (2.0 / 4) * (2.0 / 5) / (2.0 / 4 + 2.0 / 5));
  EXPECT_DOUBLE_EQ(found.rouge_l, 2 * (4.0 / 5) * (4.0 / 6) / (4.0 / 5 + 4.0 / 6));
}

TEST(TextMetrics, ARepeatedWordCountsAsOftenAsBothHaveIt) {
  EXPECT_DOUBLE_EQ(rouge("a a a a", "a a").rouge1, 2 * 0.5 * 1 / 1.5);
}

TEST(TextMetrics, TextsWithoutWordsScoreNothing) {
  for (const auto& [a, b] : {std::pair{"", "a"}, {"a", ""}, {"", ""}, {"…", "…"}}) {
    const Rouge found = rouge(a, b);
    EXPECT_EQ(found.rouge1 + found.rouge2 + found.rouge_l, 0);
  }
  EXPECT_EQ(rouge("a", "a").rouge2, 0) << "one word has no pair";
}

}  // namespace
}  // namespace trellis::trainer
