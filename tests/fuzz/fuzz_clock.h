#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

/// How much is run, by environment: TRELLIS_FUZZ_SEED (the first program's), TRELLIS_FUZZ_PROGRAMS
/// or TRELLIS_FUZZ_SECONDS, and TRELLIS_FUZZ_VERBOSE (each statement before it runs, for crashes).
namespace trellis::fuzz {

inline constexpr std::int64_t kMostFailures = 5;

inline std::int64_t setting(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoll(text);
}

inline bool verbose() { return std::getenv("TRELLIS_FUZZ_VERBOSE") != nullptr; }

/// Calls body(seed), which says whether all is well, until enough programs ran or failed. Returns
/// the number of failures.
template <typename Body>
std::int64_t for_each_seed(std::int64_t programs, Body body) {
  const auto first = static_cast<std::uint64_t>(setting("TRELLIS_FUZZ_SEED", 1));
  const std::int64_t seconds = setting("TRELLIS_FUZZ_SECONDS", 0);
  programs = setting("TRELLIS_FUZZ_PROGRAMS", seconds > 0 ? std::int64_t{1} << 40 : programs);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::cout << "seed " << first << std::endl;
  std::int64_t failures = 0;
  for (std::int64_t i = 0; i < programs && failures < kMostFailures; ++i) {
    if (seconds > 0 && std::chrono::steady_clock::now() > end) break;
    if (!body(first + static_cast<std::uint64_t>(i))) ++failures;
  }
  return failures;
}

}  // namespace trellis::fuzz
