// Early stopping as a function of the values it sees.
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/loop/early_stopping.h"

namespace trellis::trainer {
namespace {

/// The defaults with some fields changed.
EarlyStoppingSection section_with(const std::function<void(EarlyStoppingSection&)>& change) {
  EarlyStoppingSection section;
  change(section);
  return section;
}

/// After how many values it stops; 0: never.
int stops_after(const EarlyStoppingSection& section, const std::vector<double>& values) {
  EarlyStopping stopping(section);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (stopping.update(values[i])) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(EarlyStopping, WaitsPatienceValuesForAnImprovementOfMinDelta) {
  const EarlyStoppingSection section =
      section_with([](auto& s) { s.min_delta = 0.1, s.patience = 3; });
  EXPECT_EQ(stops_after(section, {5, 4, 3.95, 3.92, 3.91}), 5)
      << "smaller steps than min_delta are none";
  EXPECT_EQ(stops_after(section, {5, 4, 4.1, 4.2, 3.8, 3.9, 3.9}), 0);
  EXPECT_EQ(stops_after(section, {5, 4, 4.1, 4.2, 3.8, 3.9, 3.9, 3.9}), 8);
}

TEST(EarlyStopping, ModeMaxReversesIt) {
  const EarlyStoppingSection section =
      section_with([](auto& s) { s.mode = "max", s.min_delta = 0, s.patience = 2; });
  EXPECT_EQ(stops_after(section, {1, 2, 3, 4}), 0);
  EXPECT_EQ(stops_after(section, {3, 2, 1}), 3);
}

TEST(EarlyStopping, ThresholdsAndNonFiniteValuesEndAtOnce) {
  EXPECT_EQ(stops_after(section_with([](auto& s) { s.stopping_threshold = 1; }), {3, 2, 0.9}), 3);
  EXPECT_EQ(stops_after(section_with([](auto& s) { s.divergence_threshold = 10; }), {3, 11}), 2);
  EXPECT_EQ(stops_after({}, {3, NAN}), 2);
  EXPECT_EQ(stops_after(section_with([](auto& s) { s.check_finite = false; }), {3, INFINITY, 2}),
            0);
}

TEST(EarlyStopping, AnUnknownModeIsTheUsersMistake) {
  EXPECT_THROW(EarlyStopping(section_with([](auto& s) { s.mode = "least"; })), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
