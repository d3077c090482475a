#include "analysis/accuracy/interval_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/accuracy/evaluate.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

/// Products of 256 columns, short ones of few columns and transposes are what misses.
TEST(IntervalRows, TwentyOfTwentyFiveAreWithinTenPercent) {
  const PublishedRows published = read_published_rows("intervals");
  Evaluator evaluator({}, true);
  int within = 0;
  for (const PublishedRow& row : published.rows) {
    const double error = evaluator.time_us("intervals", row) / row.time_us - 1;
    within += std::abs(error) <= 0.1 ? 1 : 0;
    std::printf("%-28s %7.3f us, error %+6.1f %%\n", row.id.c_str(), row.time_us, 100 * error);
  }
  published.document.problems().throw_if_any();
  EXPECT_EQ(published.rows.size(), 25u);
  EXPECT_GE(within, 20);
}

TEST(IntervalRows, AnInstructionThatCannotBeIsNamed) {
  const auto message = [](const std::string& instruction) -> std::string {
    const YamlDocument document =
        YamlDocument::parse("engine: vector\ninstruction: \"" + instruction + "\"\n", "a row");
    PublishedRow row;
    row.id = "mine";
    row.instance = "trn1.2xlarge";
    row.spec = document.root();
    try {
      static_cast<void>(Evaluator({}, true).time_us("intervals", row));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("tensor_sing dst=0:fp32:p0+128:d4*1"),
              testing::AllOf(testing::HasSubstr("row mine"), testing::HasSubstr("tensor_sing")));
  EXPECT_THAT(message("tensor_copy dst=0:fp32:p0+128:d99999*1 src0=1:fp32:p0+128:d4*1"),
              testing::HasSubstr("row mine"));
}

}  // namespace
}  // namespace trellis::analysis
