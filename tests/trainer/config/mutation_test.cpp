#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {
namespace {

/// TRELLIS_FUZZ_SEED repeats a run that failed.
std::uint64_t seed_of_run() {
  if (const char* seed = std::getenv("TRELLIS_FUZZ_SEED")) return std::strtoull(seed, nullptr, 10);
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string mutate(const std::string& text) {
    std::string result = text;
    for (std::size_t i = below(4) + 1; i > 0; --i) result = once(result);
    return result;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }

  std::string once(std::string text) {
    static const char* kValues[] = {"-1", "0", "99999999999999999999", "null", "[]", "{}", "[1, {a: b}]", "\"\"", ".inf", "1e400", "${model.num_layers}",
                                    "${.name}", "${multiply:a, b}", "&a [*a]", "!!binary x", "true", "|", "'", "2147483647"};
    std::vector<std::string> lines = lines_of(text);
    if (lines.empty()) return text;
    const std::size_t at = below(lines.size());
    switch (below(5)) {
      case 0: lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: lines.push_back(lines[at]); break;
      case 2: std::swap(lines[at], lines[below(lines.size())]); break;
      case 3: lines[at] = lines[at].substr(0, lines[at].find(':')) + ": " + kValues[below(std::size(kValues))]; break;
      default: {
        if (!lines[at].empty()) lines[at][below(lines[at].size())] = static_cast<char>(below(256));
      }
    }
    std::string out;
    for (const std::string& line : lines) out += line + "\n";
    return out;
  }

  std::mt19937_64 random_;
};

TEST(Mutation, EveryFileIsEitherAcceptedAndRoundTripsOrRejectedWithAText) {
  const std::uint64_t seed = seed_of_run();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("TRELLIS_FUZZ_SEED=" + std::to_string(seed));
  std::printf("TRELLIS_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  Mutator mutator(seed);
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = mutator.mutate(kBaseConfig);
    try {
      const RunConfig config = load_text(text);
      ++accepted;
      ASSERT_EQ(load_text(config.resolved_yaml), config) << text;
      ASSERT_GE(config.num_microbatches(), 1) << text;
      ASSERT_GT(config.num_parameters(), 0) << text;
    } catch (const ConfigError& error) {
      ASSERT_STRNE(error.what(), "") << text;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace trellis::trainer
