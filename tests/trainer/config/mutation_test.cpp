#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "base/log.h"
#include "tests/trainer/config/base_config.h"
#include "trainer/config/run_plan.h"
#include "trainer/utils/lr_scheduler.h"

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
    static const char* kValues[] = {"-1", "1", "2", "3", "false", "0.5", "1.0", "full", "selective", "gelu", "learned_absolute", "manual", "autocast",
                                    "[1, a]", "[model.layers.0]", "sgd", "adafactor", "StepLR", "'00:01:00:00'", "0", "99999999999999999999", "null", "[]", "{}", "[1, {a: b}]", "\"\"", ".inf", "1e400", "${model.num_layers}",
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

/// The base configuration and NxDT's examples, which use most keys.
std::vector<std::string> seeds() {
  std::vector<std::string> texts = {kBaseConfig};
  const std::string folder = std::string(TRELLIS_SOURCE_DIR) + "/examples/nxdt";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream stream(entry.path());
    std::string text(std::istreambuf_iterator<char>(stream), {});
    if (const std::size_t at = text.find("model_configs/"); at != std::string::npos) text.insert(at, folder + "/");
    texts.push_back(std::move(text));
  }
  std::ranges::sort(texts);
  return texts;
}

/// TRELLIS_FUZZ_SECONDS runs longer than the default number of files.
class Budget {
 public:
  explicit Budget(int files) : files_(files) {
    if (const char* seconds = std::getenv("TRELLIS_FUZZ_SECONDS")) end_ = Clock::now() + std::chrono::seconds(std::atoi(seconds));
  }
  bool next() { return end_ ? Clock::now() < *end_ : files_-- > 0; }

 private:
  using Clock = std::chrono::steady_clock;
  int files_;
  std::optional<Clock::time_point> end_;
};

void expect_sound(const std::string& text, const RunConfig& config) {
  ASSERT_EQ(load_text(config.resolved_yaml), config) << text << "\n--- resolved:\n" << config.resolved_yaml;
  ASSERT_GE(config.num_microbatches(), config.pp()) << text;
  ASSERT_GT(config.num_parameters(), 0) << text;
  ASSERT_GT(config.model_flops_per_step(), 0) << text;
  ASSERT_TRUE(std::isfinite(learning_rate(config.model.optim, config.trainer.max_steps, 0))) << text;
  if (config.world_size() > 1 << 14) return;  // the lists of groups are long
  const RunPlan plan = plan_run(config);
  ASSERT_EQ(plan.stages.front().first_layer, 0) << text;
  ASSERT_EQ(plan.stages.back().end_layer, config.model.num_layers) << text;
  for (const StagePlan& stage : plan.stages) ASSERT_LT(stage.first_layer, stage.end_layer) << text;
}

TEST(Mutation, EveryFileIsEitherAcceptedAndRoundTripsOrRejectedWithAText) {
  const std::uint64_t seed = seed_of_run();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("TRELLIS_FUZZ_SEED=" + std::to_string(seed));
  std::printf("TRELLIS_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  set_log_level(LogLevel::kError);  // warnings of thousands of files
  Mutator mutator(seed);
  const std::vector<std::string> sources = seeds();
  int accepted = 0, files = 0;
  for (Budget budget(3000); budget.next(); ++files) {
    const std::string text = mutator.mutate(sources[static_cast<std::size_t>(files) % sources.size()]);
    try {
      const RunConfig config = load_text(text);
      ++accepted;
      ASSERT_NO_FATAL_FAILURE(expect_sound(text, config));
    } catch (const ConfigError& error) {
      ASSERT_STRNE(error.what(), "") << text;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << text;
    }
  }
  std::printf("%d files, %d accepted\n", files, accepted);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace trellis::trainer
