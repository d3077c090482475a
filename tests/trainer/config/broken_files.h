#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {

using Change = std::pair<const char*, const char*>;

struct Broken {
  std::vector<Change> changes;  ///< a piece of the base configuration, and what is there instead
  const char* expected;         ///< the complete text
};

/// The base configuration with the changes.
inline std::string broken_text(const Broken& broken) {
  std::string text = kBaseConfig;
  for (const auto& [from, to] : broken.changes) {
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << "the base configuration has no: " << from;
    if (place != std::string::npos) text.replace(place, std::string(from).size(), to);
  }
  return text;
}

}  // namespace trellis::trainer
