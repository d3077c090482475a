#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace trellis::cli {

/// CLI11 takes "" for the number 0 and for an option that was not given.
inline CLI::Validator not_empty(const std::string& expected) {
  return CLI::Validator(
      [expected](const std::string& text) {
        return text.empty() ? "expected " + expected + ", got \"\"" : std::string();
      },
      "");
}

}  // namespace trellis::cli
