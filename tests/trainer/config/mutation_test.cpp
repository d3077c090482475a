#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "base/problem.h"
#include "tests/fuzz/changed_files.h"
#include "tests/trainer/config/base_config.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/run_plan.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/config/machine.h"

namespace trellis::trainer {
namespace {

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
    static const char* kValues[] = {"-1",
                                    "1",
                                    "2",
                                    "3",
                                    "false",
                                    "0.5",
                                    "1.0",
                                    "full",
                                    "selective",
                                    "gelu",
                                    "learned_absolute",
                                    "manual",
                                    "autocast",
                                    "[1, a]",
                                    "[model.layers.0]",
                                    "sgd",
                                    "adafactor",
                                    "StepLR",
                                    "'00:01:00:00'",
                                    "0",
                                    "99999999999999999999",
                                    "null",
                                    "[]",
                                    "{}",
                                    "[1, {a: b}]",
                                    "\"\"",
                                    ".inf",
                                    "1e400",
                                    "${model.num_layers}",
                                    "${.name}",
                                    "${multiply:a, b}",
                                    "&a [*a]",
                                    "!!binary x",
                                    "true",
                                    "|",
                                    "'",
                                    "2147483647",
                                    "\"\\nforged: all is well\\n\\x1b[31m\\0\\u009b\"",
                                    "../../etc",
                                    "/etc/passwd",
                                    "/dev/zero",
                                    "64",
                                    "1024",
                                    "9007199254740993",
                                    "=cmd()"};
    std::vector<std::string> lines = lines_of(text);
    if (lines.empty()) return text;
    const std::size_t at = below(lines.size());
    switch (below(5)) {
      case 0: lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at)); break;
      case 1: lines.push_back(lines[at]); break;
      case 2: std::swap(lines[at], lines[below(lines.size())]); break;
      case 3:
        lines[at] =
            lines[at].substr(0, lines[at].find(':')) + ": " + kValues[below(std::size(kValues))];
        break;
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

/// The base configuration and all configurations among the examples: together they use most keys.
std::vector<std::string> seeds() {
  const std::filesystem::path examples = std::filesystem::path(TRELLIS_SOURCE_DIR) / "examples";
  std::vector<std::string> texts = {kBaseConfig};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(examples)) {
    if (entry.path().extension() != ".yaml") continue;
    std::string text = read_all(entry.path());
    if (text.find("model_source:") == std::string::npos) continue;
    if (const std::size_t at = text.find("model_configs/"); at != std::string::npos)
      text.insert(at, (examples / "nxdt").string() + "/");
    texts.push_back(std::move(text));
  }
  std::ranges::sort(texts);
  return texts;
}

void expect_sound(const std::string& text, const RunConfig& config) {
  ASSERT_EQ(load_text(config.resolved_yaml), config) << text << "\n--- resolved:\n"
                                                     << config.resolved_yaml;
  const TemporaryDirectory directory;
  const RunConfig shorter =
      load_run_config(directory.write("run.yaml", text), {}, sim::kTrainingInstance, {.steps = 2});
  ASSERT_EQ(shorter.trainer.max_steps, 2);
  ASSERT_EQ(load_text(shorter.resolved_yaml), shorter) << text << "\n--- resolved:\n"
                                                       << shorter.resolved_yaml;
  ASSERT_GE(config.num_microbatches(), config.pp()) << text;
  ASSERT_GT(config.num_parameters(), 0) << text;
  ASSERT_GT(config.model_flops_per_step(), 0) << text;
  ASSERT_TRUE(std::isfinite(learning_rate(config.model.optim, config.trainer.max_steps, 0)))
      << text;
  if (config.world_size() > 1 << 14) return;  // the lists of groups are long
  const RunPlan plan = plan_run(config);
  ASSERT_EQ(plan.stages.front().first_layer, 0) << text;
  ASSERT_EQ(plan.stages.back().end_layer, config.model.num_layers) << text;
  for (const StagePlan& stage : plan.stages) ASSERT_LT(stage.first_layer, stage.end_layer) << text;
}

/// Why a message is not what a user can act on: each problem says "file:line" or "command line",
/// and none holds controls or forged lines.
std::string fault_of(const std::string& message, const std::string& file) {
  if (message.empty()) return "no text";
  if (std::string why = fuzz::unfit(message); !why.empty()) return why;
  const std::vector<Problem> problems = parse_problems(message, file);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const Problem& problem = problems[i];
    const bool located =
        problem.file == "command line" || (problem.file == file && problem.line > 0);
    const bool count = i == kMostShownProblems && problem.text.starts_with("and ");
    if (!located && !count) return "no place: " + problem.text;
  }
  return problems.size() > kMostShownProblems + 1 ? "too many problems" : "";
}

/// As `trellis validate --instance` does.
void check_machine(const RunConfig& config, const std::string& instance) {
  const sim::SystemConfig system = load_machine(config, instance, {});
  check_fits_machine(config, system);
}

std::vector<std::string> overrides_of(Mutator& mutator, std::size_t number) {
  static const char* const kOverrides[] = {"trainer.lnc=2", "trainer.num_nodes=64",
                                           "model.num_layers=2000000000",
                                           "data.global_batch_size=2000000000", "trainer.lnc: 1"};
  if (number % 3 != 0) return {};
  std::string text = kOverrides[number / 3 % std::size(kOverrides)];
  return {number % 2 == 0 ? text : mutator.mutate(text)};
}

TEST(Mutation, EveryFileIsAcceptedAndRoundTripsOrIsRejectedAtAPlaceAndSoon) {
  set_log_level(LogLevel::kError);  // warnings of thousands of files
  const std::vector<std::string> sources = seeds();
  ASSERT_GE(sources.size(), 25U);
  const std::vector<std::string> instances = {"trn1.2xlarge", "trn1.32xlarge", "trn2.48xlarge"};
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "run.yaml").string();
  int accepted = 0, files = 0;
  const auto began = std::chrono::steady_clock::now();
  const std::int64_t failures = fuzz::for_each_seed(1500, [&](std::uint64_t seed) {
    Mutator mutator(seed);
    const std::string text = mutator.mutate(sources[seed % sources.size()]);
    fuzz::put(file, text);
    const double start = fuzz::thread_seconds();
    std::string fault;
    std::optional<RunConfig> config;
    try {
      config = load_run_config(file, overrides_of(mutator, seed));
      check_machine(*config, instances[seed % instances.size()]);
    } catch (const ConfigError& error) {
      fault = fault_of(error.what(), file);
    } catch (const std::exception& error) {
      fault = std::string("exception: ") + error.what();
    }
    if (const double took = fuzz::thread_seconds() - start;
        took > fuzz::kMostSeconds * fuzz::slowdown())
      fault = "took " + std::to_string(took) + " s";
    ++files;
    accepted += config ? 1 : 0;
    if (config) expect_sound(text, *config);
    if (!fault.empty())
      ADD_FAILURE() << "TRELLIS_FUZZ_SEED=" << seed << ": " << fault << "\n" << terminal_text(text);
    return fault.empty() && !testing::Test::HasFatalFailure();
  });
  const double minutes =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / 60;
  std::printf("%d files, %d accepted, %.0f files per minute\n", files, accepted, files / minutes);
  EXPECT_EQ(failures, 0);
  EXPECT_GT(accepted, files / 50);
}

/// Inputs that took seconds or printed megabytes: sizes that are no model, and a file of another
/// program.
TEST(Mutation, SizesWithoutMeaningAreRefusedAtOnce) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("run.yaml", kBaseConfig);
  for (const std::string key :
       {"model.num_layers", "trainer.devices", "trainer.num_nodes", "data.global_batch_size",
        "data.num_workers", "model.hidden_size", "model.num_attention_heads",
        "model.encoder_seq_length", "distributed_strategy.tensor_model_parallel_size",
        "distributed_strategy.pipeline_model_parallel_size",
        "distributed_strategy.virtual_pipeline_model_parallel_size", "trainer.lnc"}) {
    const double start = fuzz::thread_seconds();
    try {
      (void)load_run_config(file, {key + "=2000000000"});
      ADD_FAILURE() << key;
    } catch (const ConfigError& error) {
      EXPECT_EQ(fault_of(error.what(), file), "") << key;
    }
    EXPECT_LT(fuzz::thread_seconds() - start, fuzz::kMostSeconds * fuzz::slowdown()) << key;
  }
  EXPECT_EQ(problems_of(kBaseConfig, {"model.num_layers=10000"}),
            "command line:model.num_layers: expected at most 1024, got 10000: each layer is "
            "planned and run one by one");
}

TEST(Mutation, ManyProblemsAreCountedAndTheFirstOnesShown) {
  std::string text = kBaseConfig;
  for (int i = 0; i < 20'000; ++i) text += "unknown_" + std::to_string(i) + ": 1\n";
  const double start = fuzz::thread_seconds();
  const std::string message = problems_of(text);
  EXPECT_LT(fuzz::thread_seconds() - start, fuzz::kMostSeconds * fuzz::slowdown());
  EXPECT_EQ(std::ranges::count(message, '\n'), 50);
  EXPECT_TRUE(message.ends_with("\nand 19950 more, 20000 in all: correct these first"))
      << message.substr(message.size() - 100);
}

}  // namespace
}  // namespace trellis::trainer
