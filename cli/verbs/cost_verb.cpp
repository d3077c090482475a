#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "analysis/cost/cost_report.h"
#include "analysis/cost/cost_table.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/process/run_self.h"
#include "base/yaml/yaml.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "traces/report/checkpoint_report.h"
#include "traces/report/report_file.h"
#include "traces/report/report_summary.h"

namespace trellis::cli {
namespace {

using analysis::ReportFile;

struct CostOptions {
  std::string source, prices, steps, tokens, html, csv, mtbf, restart_time, checkpoint_interval,
      checkpoint_time, checkpoint_bandwidth, checkpoint_storage, validation_time, error;
  std::vector<std::string> overrides, instances;
  std::int64_t validation_every = 0, checkpoint_every = 0;
  int nodes = 0;
  bool json = false;
};

bool is_run(const std::string& source) {
  return std::filesystem::is_directory(source) || source.ends_with(".json");
}

/// A finished run's report.
ReportFile finished_run(const CostOptions& options) {
  if (!options.instances.empty() || options.nodes > 0 || !options.overrides.empty() ||
      options.checkpoint_every > 0 || !options.checkpoint_storage.empty()) {
    throw ConfigError(
        "--instance, --nodes, --checkpoint-every, --checkpoint-storage and overrides belong to a "
        "configuration: " +
        options.source + " is a finished run, of which the report says all that");
  }
  return analysis::read_report_file(options.source);
}

/// Arguments of the program that simulate the configuration. `instance`: "": the one that it names
/// itself.
std::vector<std::string> simulation(const CostOptions& options, const std::string& instance) {
  std::vector<std::string> arguments = {"simulate", options.source};
  arguments.insert(arguments.end(), options.overrides.begin(), options.overrides.end());
  if (!instance.empty()) arguments.insert(arguments.end(), {"--instance", instance});
  if (options.nodes > 0)
    arguments.insert(arguments.end(), {"--nodes", std::to_string(options.nodes)});
  if (options.checkpoint_every > 0)
    arguments.insert(arguments.end(),
                     {"--checkpoint-every", std::to_string(options.checkpoint_every)});
  if (!options.checkpoint_storage.empty())
    arguments.insert(arguments.end(), {"--checkpoint-storage", options.checkpoint_storage});
  arguments.emplace_back("--json");
  return arguments;
}

ReportFile simulated_run(const CostOptions& options, const std::string& report) {
  ReportFile file;
  file.path = options.source;
  file.report = nlohmann::json::parse(report);
  analysis::check_run_report(file.report, options.source);
  return file;
}

std::int64_t steps_of(const CostOptions& options, std::int64_t tokens_per_step) {
  if (options.steps.empty() == options.tokens.empty())
    throw ConfigError("how long a run? Expected either --steps N or --tokens N, e.g. --tokens 2T");
  if (!options.steps.empty())
    return static_cast<std::int64_t>(analysis::parse_count("--steps", options.steps));
  return static_cast<std::int64_t>(std::ceil(analysis::parse_count("--tokens", options.tokens) /
                                             static_cast<double>(tokens_per_step)));
}

/// Weights, and for each parameter what AdamW keeps in the optimizer's type: master weight and two
/// moments.
double checkpoint_bytes(const nlohmann::json& report) {
  const std::string precision = report.at("precision");
  const double each = precision == "fp64" ? 8 + 16 : precision == "fp32" ? 4 + 8 : 2 + 12;
  return report.at("parameters").get<double>() * each;
}

/// Takes the report's figures of its checkpoints; the user's own figures come before them.
void take_simulated(const nlohmann::json& checkpoints, analysis::CostReport& cost) {
  const analysis::CheckpointCost simulated = analysis::checkpoint_cost(checkpoints);
  cost.checkpoint_bytes = static_cast<double>(simulated.bytes);
  cost.inputs.checkpoint_s = simulated.wait_s;
  cost.inputs.interval_s = static_cast<double>(simulated.every_n_steps) * cost.step_s;
  cost.inputs.restart_s = simulated.restart_s;
  cost.notes.emplace_back(
      "checkpoints: simulated waiting and interval of the report; a restart starts processes, "
      "loads "
      "compiled programs and reads the checkpoint");
}

void read_checkpoints(const CostOptions& options, analysis::CostReport& cost,
                      const nlohmann::json& report) {
  if (!options.checkpoint_time.empty() && !options.checkpoint_bandwidth.empty())
    throw ConfigError(
        "--checkpoint-time and --checkpoint-bandwidth say the same twice: expected one of them");
  if (report.contains("checkpoints") && options.checkpoint_time.empty() &&
      options.checkpoint_bandwidth.empty())
    take_simulated(report.at("checkpoints"), cost);
  if (!options.checkpoint_time.empty())
    cost.inputs.checkpoint_s =
        analysis::parse_duration("--checkpoint-time", options.checkpoint_time);
  if (!options.checkpoint_bandwidth.empty()) {
    const auto bandwidth = parse_quantity<BytesPerSecond>(options.checkpoint_bandwidth);
    if (!bandwidth || !(bandwidth->value > 0)) {
      throw ConfigError(
          "--checkpoint-bandwidth \"" + options.checkpoint_bandwidth +
          "\": expected the rate of all nodes together with its unit, e.g. \"20 GB/s\"");
    }
    cost.checkpoint_bytes = checkpoint_bytes(report);
    cost.inputs.checkpoint_s = *cost.checkpoint_bytes / bandwidth->value;
    cost.notes.emplace_back(
        "bytes of a checkpoint: parameters × (weight + fp32 master and two moments of AdamW); "
        "other optimizers: give --checkpoint-time");
  }
  if (!options.checkpoint_interval.empty()) {
    cost.inputs.interval_s =
        analysis::parse_duration("--checkpoint-interval", options.checkpoint_interval);
    if (!(*cost.inputs.interval_s > 0))
      throw ConfigError("--checkpoint-interval \"" + options.checkpoint_interval +
                        "\": expected a time above 0");
  }
}

void read_failures(const CostOptions& options, analysis::CostReport& cost) {
  if (!options.restart_time.empty())
    cost.inputs.restart_s = analysis::parse_duration("--restart-time", options.restart_time);
  if (!options.mtbf.empty()) {
    cost.inputs.node_mtbf_s = analysis::parse_duration("--mtbf", options.mtbf);
    if (!(*cost.inputs.node_mtbf_s > 0))
      throw ConfigError("--mtbf \"" + options.mtbf + "\": expected a time above 0");
  } else {
    cost.notes.emplace_back(
        "no failures are counted: --mtbf 30d says that a node fails once in 30 days");
    if (!options.restart_time.empty() && cost.inputs.restart_s > 0)
      throw ConfigError("--restart-time: nothing restarts without failures: give --mtbf too");
  }
  if ((options.validation_every > 0) == options.validation_time.empty())
    throw ConfigError("--validation-every N and --validation-time T belong together");
  cost.inputs.validation_every = options.validation_every;
  if (options.validation_every > 0)
    cost.inputs.validation_s =
        analysis::parse_duration("--validation-time", options.validation_time);
}

/// The expected case, and the two at the ends of the step time's range: the user's own, or that of
/// the report.
void plan_cases(const CostOptions& options, analysis::CostReport& cost) {
  std::vector<std::pair<std::string, double>> factors = {{"expected", 1}};
  if (!options.error.empty()) {
    std::string digits = options.error;
    if (digits.ends_with('%')) digits.pop_back();
    char* end = nullptr;
    const double percent = std::strtod(digits.c_str(), &end);
    if (digits.size() == options.error.size() || end == digits.c_str() || *end != '\0' ||
        !(percent > 0 && percent < 100)) {
      throw ConfigError(
          "--error \"" + options.error +
          "\": expected the error of the step time as a share between 0% and 100%, e.g. 12%");
    }
    factors.emplace_back("fast", 1 - percent / 100);
    factors.emplace_back("slow", 1 + percent / 100);
  } else if (cost.validity.is_object() && cost.validity.contains("factor")) {
    const double factor = cost.validity.at("factor");
    factors.emplace_back("fast", 1 / factor);
    factors.emplace_back("slow", factor);
    cost.notes.push_back("fast and slow: the ends of the step time's range: " +
                         cost.validity.at("basis").get<std::string>() +
                         "; --error 12% takes another");
  } else {
    cost.notes.emplace_back(
        "one figure without a range: --error 12% gives one; `trellis accuracy` lists what the "
        "model's errors are");
  }
  for (const auto& [name, factor] : factors) {
    analysis::RunPlanInputs inputs = cost.inputs;
    inputs.step_s = cost.step_s * factor;
    cost.cases.push_back({name, inputs.step_s, analysis::plan_time(inputs)});
  }
}

analysis::CostReport cost_of(const CostOptions& options, const analysis::PriceFile& prices,
                             const ReportFile& file) {
  analysis::CostReport cost;
  cost.prices = prices;
  const analysis::ReportSummary summary = analysis::summarize(file);
  cost.source = options.source;
  cost.evidence = file.report.at("simulated").at("evidence");
  cost.validity = file.report.value("validity", nlohmann::json(nullptr));
  cost.instance = file.report.at("instance");
  cost.nodes = file.report.at("nodes");
  cost.cores = analysis::core_use(file.report);
  if (!cost.cores)
    cost.notes.emplace_back(
        "the report does not say how many cores the machine has, and so not which share of it is "
        "unused: an older program wrote it");
  cost.plans = cost.prices.of(cost.instance).plans;
  cost.tokens_per_step = file.report.at("tokens_per_step");
  cost.step_s = static_cast<double>(summary.step.step_time_ps) * 1e-12;
  cost.mfu = summary.mfu;
  cost.steps = steps_of(options, cost.tokens_per_step);
  cost.inputs.step_s = cost.step_s;
  cost.inputs.steps = cost.steps;
  cost.inputs.nodes = cost.nodes;
  read_checkpoints(options, cost, file.report);
  read_failures(options, cost);
  plan_cases(options, cost);
  return cost;
}

/// The last error message of a child.
std::string error_line(const std::string& text) {
  const std::size_t begin = text.rfind("error: ");
  return begin == std::string::npos ? text.substr(0, text.find('\n'))
                                    : text.substr(begin + 7, text.find('\n', begin) - begin - 7);
}

/// The same run on every instance that the user named; at least one must be able to run it.
analysis::CostComparison compare(const CostOptions& options, const analysis::PriceFile& prices) {
  analysis::CostComparison comparison;
  int first_failure = 0;
  std::vector<std::vector<std::string>> children;
  for (const std::string& instance : options.instances)
    children.push_back(simulation(options, instance));
  Activity activity(fmt::format("simulating on {}", fmt::join(options.instances, ", ")));
  std::vector<ChildResult> results(children.size());
  std::int64_t done = 0;
  run_selves(children, 1, [&](std::size_t child, const ChildResult& result) {
    results[child] = result;
    activity.count(++done, static_cast<std::int64_t>(children.size()));
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].exit_code == 0) {
      comparison.runs.push_back(cost_of(options, prices, simulated_run(options, results[i].out)));
    } else {
      comparison.refused.push_back({options.instances[i], error_line(results[i].err)});
      if (first_failure == 0) first_failure = results[i].exit_code;
    }
  }
  if (comparison.runs.empty())
    throw Error(static_cast<ExitCode>(first_failure),
                "none of the instances can run it:\n" + analysis::comparison_text(comparison));
  return comparison;
}

void cost(const CostOptions& options) {
  const analysis::PriceFile prices = analysis::read_prices(options.prices);
  for (const std::string& instance : options.instances)
    (void)prices.of(instance);  // before anything is simulated
  OutputFiles files({{"--csv", options.csv}, {"--html", options.html}});
  analysis::CostComparison comparison;
  if (options.instances.size() > 1 && !is_run(options.source)) {
    comparison = compare(options, prices);
  } else {
    const ReportFile run =
        is_run(options.source)
            ? finished_run(options)
            : simulated_run(
                  options,
                  run_self(simulation(options,
                                      options.instances.empty() ? "" : options.instances.front())));
    comparison.runs.push_back(cost_of(options, prices, run));
  }
  files.write("--csv", [&] { return analysis::cost_csv(comparison); });
  files.write("--html", [&] { return analysis::cost_page(comparison); });
  if (options.instances.size() > 1) {
    std::cout << (options.json ? analysis::to_json(comparison).dump(1) + "\n"
                               : analysis::comparison_text(comparison));
  } else {
    std::cout << (options.json ? analysis::to_json(comparison.runs.front()).dump(1) + "\n"
                               : analysis::cost_text(comparison.runs.front()));
  }
  files.finish();
}

constexpr const char* kCostFooter =
    "Examples:\n  trellis cost runs/a --prices examples/prices.yaml --tokens 300B\n"
    "  trellis cost examples/llama3_8b_trn1.yaml --prices examples/prices.yaml --tokens 300B "
    "--mtbf 60d --checkpoint-bandwidth \"10 GB/s\" --restart-time 15min --error 12%\n"
    "  trellis cost examples/llama3_8b_trn1.yaml --prices examples/prices.yaml --tokens 300B "
    "--instance trn1.32xlarge,trn2.48xlarge --csv cost.csv --html cost.html\n"
    "Expected time with failures: M·e^(R/M)·(e^((interval + checkpoint)/M) − 1)·work/interval, M "
    "= MTBF of a node / nodes, R = restart time (Daly 2006).\n"
    "Best interval: about √(2 · checkpoint time · M), with Daly's higher-order terms.";

/// How a run may fail and be validated.
void failure_options(CLI::App& verb, CostOptions& options) {
  verb.add_option("--mtbf", options.mtbf, "mean time between failures of one node, e.g. 30d");
  verb.add_option("--restart-time", options.restart_time,
                  "from a failure to the first step again; none: what the simulated checkpoints "
                  "say, else 0");
  verb.add_option("--checkpoint-every", options.checkpoint_every,
                  "of a configuration: steps between checkpoints, whose time is simulated")
      ->type_name("N")
      ->check(at_least(1));
  verb.add_option("--checkpoint-storage", options.checkpoint_storage,
                  "of a configuration: where simulated checkpoints go (see `trellis describe "
                  "storage`)")
      ->type_name("STORAGE")
      ->check(not_empty("a storage"));
  verb.add_option("--checkpoint-interval", options.checkpoint_interval,
                  "time between checkpoints, e.g. 30min; none with --mtbf: Daly's optimum");
  verb.add_option("--checkpoint-time", options.checkpoint_time,
                  "that the run waits for one, e.g. 90s");
  verb.add_option("--checkpoint-bandwidth", options.checkpoint_bandwidth,
                  "instead: rate of all nodes together, e.g. \"20 GB/s\"");
  verb.add_option("--validation-every", options.validation_every,
                  "steps between passes over held-out data")
      ->check(at_least(1));
  verb.add_option("--validation-time", options.validation_time, "of one pass, e.g. 2min");
}

}  // namespace

void add_cost(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("cost",
                                      "days, node-hours and money of a whole run, with failures "
                                      "and checkpoints, from its simulated step");
  auto options = std::make_shared<CostOptions>();
  verb->add_option("source", options->source,
                   "a run's folder or its report.json, or a configuration, which is then simulated")
      ->required();
  verb->add_option("overrides", options->overrides, "of a configuration: key.path=value");
  verb->add_option(
          "--prices", options->prices,
          "price file: date, currency, prices per instance and hour (examples/prices.yaml)")
      ->required()
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--steps", options->steps, "optimizer steps, e.g. 50000");
  verb->add_option("--tokens", options->tokens, "tokens to train on, e.g. 300B or 2T");
  verb->add_option("--instance", options->instances,
                   "of a configuration: the machine (see `trellis describe`); several, A,B,C: one "
                   "table of all, the cheapest first")
      ->delimiter(',')
      ->check(not_empty("an instance"));
  verb->add_option("--nodes", options->nodes,
                   "of a configuration: how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  failure_options(*verb, *options);
  verb->add_option("--error", options->error,
                   "of the simulated step time, e.g. 12%: adds a fast and a slow case");
  verb->add_option("--csv", options->csv, "a line for each instance, case and way to pay")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--html", options->html, "one page without network: money and time")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_flag("--json", options->json,
                 "one JSON document (schema trellis.cost/1; of several instances trellis.costs/1)");
  verb->footer(kCostFooter);
  verb->callback([options, &exit_code] {
    cost(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
