#pragma once

#include <gtest/gtest.h>

#include "tests/trainer/config/base_config.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Everything but the text itself must survive writing and reading.
inline void expect_round_trip(const RunConfig& config) {
  const RunConfig again = load_text(config.resolved_yaml);
  EXPECT_EQ(again.resolved_yaml, config.resolved_yaml);
  EXPECT_EQ(again, config) << config.resolved_yaml;
}

}  // namespace trellis::trainer
