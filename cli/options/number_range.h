#pragma once

#include <string>

#include <CLI/CLI.hpp>

/// CLI11's own ranges print the limits of a double in full: 300 digits.
namespace trellis::cli {

namespace detail {
template <typename Holds>
CLI::Validator number_that(const std::string& expected, Holds holds) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && holds(value)) return std::string();
        return "expected " + expected + ", got " + text;
      },
      "");
}
}  // namespace detail

inline constexpr int kMostNodes = 16'384;
inline constexpr int kMostThreads = 1024;
inline constexpr int kMostSimulatedSteps = 1000;
inline constexpr int kMostRestarts = 1000;

inline CLI::Validator at_least(int least) {
  return detail::number_that("a number of at least " + std::to_string(least),
                             [=](double value) { return value >= least; });
}

inline CLI::Validator above_zero() {
  return detail::number_that("a number above 0", [](double value) { return value > 0; });
}

/// `why`: what the upper limit is for, e.g. "each is a thread".
inline CLI::Validator between(int least, int most, const std::string& why) {
  const std::string expected =
      "a number from " + std::to_string(least) + " to " + std::to_string(most) + " (" + why + ")";
  return detail::number_that(expected,
                             [=](double value) { return value >= least && value <= most; });
}

/// CLI11's Range lets NaN pass. `text`: the limits as people write them.
inline CLI::Validator real_between(double least, double most, const std::string& text) {
  return detail::number_that("a number " + text,
                             [=](double value) { return value >= least && value <= most; });
}

}  // namespace trellis::cli
