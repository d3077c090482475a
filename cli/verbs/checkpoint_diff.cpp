#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/number_text.h"
#include "cli/options/number_range.h"
#include "cli/output/comparison_text.h"
#include "cli/verbs/checkpoint_parts.h"
#include "cli/verbs/checkpoint_source.h"
#include "trainer/files/checkpoint/conversion/compare.h"

namespace trellis::cli {
namespace {

using checkpoint::Comparison;
using nlohmann::json;

struct DiffOptions {
  std::string a, b, config_file;
  checkpoint::CompareOptions compare;
  std::int64_t top = 20;
  bool json = false;
};

json json_of(const DiffOptions& options, const Comparison& result) {
  return {{"schema", "trellis.checkpoint_diff/1"},
          {"a", options.a},
          {"b", options.b},
          {"tolerance", options.compare.tolerance},
          {"tensors", result.tensors},
          {"bytes", result.bytes},
          {"padded", result.padded},
          {"different", result.differences.size()},
          {"differences", differences_json(result)}};
}

void print(const DiffOptions& options, const Comparison& result) {
  std::cout << differences_table(result, options.top);
  const auto different = static_cast<std::int64_t>(result.differences.size());
  if (different > options.top)
    std::cout << fmt::format("… {} more (--top)\n", different - options.top);
  if (result.padded > 0)
    std::cout << fmt::format("{} tables of vocabularies of different sizes: rows of both count\n",
                             result.padded);
  std::cout << fmt::format("{} tensors, {} compared: {} differ\n", result.tensors,
                           human_bytes(result.bytes), different);
}

int diff(const DiffOptions& options) {
  Activity activity("opening the checkpoints");
  CheckpointReader reader(options.config_file);
  const auto a = reader.open(options.a);
  const auto b = a ? reader.open(options.b) : nullptr;
  if (!b) return reader.exit_code();
  reader.check_config_is_used();
  activity.now("comparing tensors");
  const Comparison result =
      checkpoint::compare(*a, *b, options.compare,
                          [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  if (options.json) {
    std::cout << json_of(options, result).dump(1) << "\n";
  } else {
    print(options, result);
  }
  return static_cast<int>(result.differences.empty() ? ExitCode::kOk : ExitCode::kParity);
}

}  // namespace

void add_checkpoint_diff(CLI::App& checkpoint, int& exit_code) {
  CLI::App* part = checkpoint.add_subcommand(
      "diff", "compares every tensor of two checkpoints, of whatever formats and layouts");
  auto options = std::make_shared<DiffOptions>();
  part->add_option("A", options->a, "a local folder or file, or s3://bucket/prefix")->required();
  part->add_option("B", options->b, "another one")->required();
  part->add_option("--tolerance", options->compare.tolerance,
                   "elements are equal when |a - b| <= TOLERANCE * (1 + |b|)")
      ->capture_default_str()
      ->check(at_least(0.0));
  part->add_option("--config", options->config_file,
                   "NxDT YAML of the training that saved a folder of NxD, NxDT or NNM: its weights "
                   "are compared; none: the tensors of its files, by rank")
      ->type_name("YAML");
  part->add_flag("--weights-only", options->compare.weights_only, "leave optimizer states out");
  part->add_flag("--ignore-dtypes", options->compare.ignore_dtypes,
                 "compare the values of different types, not the types");
  part->add_option("--top", options->top,
                   "rows of the table at most, the largest L2 norms of a - b")
      ->capture_default_str()
      ->check(at_least(1));
  part->add_flag("--json", options->json, "one JSON document, all rows");
  part->footer(
      "Examples:\n  trellis checkpoint diff run/checkpoints/a.ckpt run/checkpoints/b.ckpt\n"
      "  trellis checkpoint diff a.ckpt exported/ --weights-only --ignore-dtypes --tolerance 4e-3\n"
      "Exit codes: 0 all tensors are equal, 5 some differ, 2 a checkpoint cannot be read.");
  part->callback([options, &exit_code] { exit_code = diff(*options); });
}

}  // namespace trellis::cli
