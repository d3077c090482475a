#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "analysis/cost/goodput.h"
#include "base/error.h"
#include "base/process/run_self.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/verbs/verbs.h"
#include "traces/report/report_file.h"

namespace trellis::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostFailures = 100'000'000;
/// Interval of the simulation; the time of a save does not depend on it.
constexpr const char* kAnyInterval = "100";

struct GoodputOptions {
  std::string source, mtbf, restart_time, instance, storage;
  std::vector<std::string> overrides;
  int nodes = 0;
  std::int64_t failures = 200'000;
  std::uint64_t seed = 1;
  bool json = false;
};

bool names_a_run(const std::string& source) {
  return std::filesystem::is_directory(source) || source.ends_with(".json");
}

json report_of(const GoodputOptions& options) {
  if (names_a_run(options.source)) {
    if (!options.overrides.empty() || options.nodes > 0 || !options.instance.empty() ||
        !options.storage.empty())
      throw ConfigError(
          "--instance, --nodes, --checkpoint-storage and overrides belong to a "
          "configuration: " +
          options.source + " is a finished run, whose report says all that");
    return analysis::read_report_file(options.source).report;
  }
  std::vector<std::string> arguments = {"simulate", options.source};
  arguments.insert(arguments.end(), options.overrides.begin(), options.overrides.end());
  if (!options.instance.empty())
    arguments.insert(arguments.end(), {"--instance", options.instance});
  if (options.nodes > 0)
    arguments.insert(arguments.end(), {"--nodes", std::to_string(options.nodes)});
  if (!options.storage.empty())
    arguments.insert(arguments.end(), {"--checkpoint-storage", options.storage});
  arguments.insert(arguments.end(), {"--checkpoint-every", kAnyInterval, "--json"});
  return json::parse(run_self(arguments));
}

double seconds_of(const json& ps) { return static_cast<double>(ps.get<std::int64_t>()) * 1e-12; }

double positive(const std::string& option, const std::string& text) {
  const double seconds = analysis::parse_duration(option, text);
  if (!(seconds > 0))
    throw ConfigError(option + " \"" + text + "\": expected a time above 0, such as 30d");
  return seconds;
}

analysis::GoodputInputs inputs_of(const GoodputOptions& options, const json& report) {
  if (!report.contains("checkpoints") || !report.contains("simulated"))
    throw ConfigError(options.source +
                      ": the report has no checkpoints in simulated time: expected a run of "
                      "`trellis simulate CONFIG --checkpoint-every N`, or a configuration");
  const json& checkpoints = report.at("checkpoints");
  analysis::GoodputInputs inputs;
  inputs.step_s = seconds_of(report.at("simulated").at("step_time_ps"));
  inputs.mtbf_s = positive("--mtbf", options.mtbf) / report.at("nodes").get<double>();
  inputs.wait_s = seconds_of(checkpoints.at("waits").at("own_ps"));
  inputs.complete_s = std::max(inputs.wait_s, seconds_of(checkpoints.at("save").at("complete_ps")));
  if (!checkpoints.at("asynchronous").get<bool>()) inputs.complete_s = inputs.wait_s;
  inputs.restart_s = options.restart_time.empty()
                         ? seconds_of(checkpoints.at("restart").at("total_ps"))
                         : analysis::parse_duration("--restart-time", options.restart_time);
  inputs.failures = options.failures;
  inputs.seed = options.seed;
  if (inputs.mtbf_s < inputs.complete_s)
    throw ConfigError(fmt::format(
        "--mtbf {}: {} nodes fail every {} together, and a save takes {}: no run gets ahead so; "
        "expected fewer nodes, a faster storage or a longer time",
        options.mtbf, report.at("nodes").get<int>(), analysis::duration_text(inputs.mtbf_s),
        analysis::duration_text(inputs.complete_s)));
  return inputs;
}

void goodput(const GoodputOptions& options) {
  (void)positive("--mtbf", options.mtbf);  // before anything is simulated
  const analysis::GoodputInputs inputs = inputs_of(options, report_of(options));
  const analysis::GoodputCurve curve = analysis::goodput_curve(inputs);
  std::cout << (options.json ? analysis::goodput_json(inputs, curve).dump(1) + "\n"
                             : analysis::goodput_text(inputs, curve))
            << std::flush;
}

void source_options(CLI::App& verb, GoodputOptions& options) {
  verb.add_option("source", options.source,
                  "configuration (it is simulated), or a run of `trellis simulate "
                  "--checkpoint-every N`: its folder or report.json")
      ->required();
  verb.add_option("overrides", options.overrides, "of a configuration: key.path=value");
  verb.add_option("--instance", options.instance, "of a configuration: the machine")
      ->check(not_empty("an instance"));
  verb.add_option("--nodes", options.nodes,
                  "of a configuration: how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb.add_option("--checkpoint-storage", options.storage,
                  "of a configuration: where checkpoints go, as for `trellis simulate`; none: nvme")
      ->type_name("STORAGE")
      ->check(not_empty("a storage"));
}

}  // namespace

void add_goodput(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "goodput", "how often to save: the share of time that is work when nodes fail");
  auto options = std::make_shared<GoodputOptions>();
  source_options(*verb, *options);
  verb->add_option("--mtbf", options->mtbf, "mean time between failures of one node, e.g. 30d")
      ->required()
      ->type_name("TIME");
  verb->add_option("--restart-time", options->restart_time,
                   "from a failure to the first step again, e.g. 15min; none: simulated (processes "
                   "start, compiled programs are loaded, the checkpoint is read)")
      ->type_name("TIME");
  verb->add_option("--failures", options->failures, "how many are played for each interval")
      ->capture_default_str()
      ->type_name("N")
      ->check(between(1000, kMostFailures, "fewer say little, more take minutes"));
  verb->add_option("--seed", options->seed, "of the failures")->capture_default_str();
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.goodput/1)");
  verb->footer(
      "Examples:\n  trellis goodput examples/llama3_8b_trn1.yaml trainer.num_nodes=16 "
      "data.global_batch_size=512 --mtbf 30d --checkpoint-storage fsx\n"
      "Failures are played one by one, from a seed, for intervals around the best one: work that "
      "stays, standing still for saves,\n"
      "work lost, restarts (which may fail too). Young's and Daly's intervals are in the table; "
      "with asynchronous saves the best one is another.");
  verb->callback([options, &exit_code] {
    goodput(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
