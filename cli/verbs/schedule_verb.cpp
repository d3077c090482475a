#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/schedule/schedule_drawing.h"
#include "base/activity.h"
#include "base/error.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

namespace trellis::cli {
namespace {

struct ScheduleOptions {
  std::string config, report, svg;
  std::vector<std::string> overrides;
  int pp = 0, vpp = 0, micro_batches = 0, width = 120;
  double ratio = 0;
  bool balance = false, json = false;
};

/// The configuration with --pp, --vpp and --micro-batches in it, validated as any other.
trainer::RunConfig load_config(const ScheduleOptions& options, const std::string& file) {
  std::vector<std::string> overrides = options.overrides;
  if (options.pp > 0)
    overrides.push_back("distributed_strategy.pipeline_model_parallel_size=" +
                        std::to_string(options.pp));
  if (options.vpp > 0)
    overrides.push_back("distributed_strategy.virtual_pipeline_model_parallel_size=" +
                        std::to_string(options.vpp));
  if (options.micro_batches > 0) {
    const trainer::RunConfig config = trainer::load_run_config(file, overrides);
    overrides.push_back("data.global_batch_size=" +
                        std::to_string(std::int64_t{options.micro_batches} *
                                       config.data.micro_batch_size * config.dp()));
  }
  return trainer::load_run_config(file, overrides);
}

analysis::SchedulePlan plan_of(const ScheduleOptions& options) {
  const std::optional<double> ratio =
      options.ratio > 0 ? std::optional(options.ratio) : std::nullopt;
  if (!options.report.empty()) {
    if (ratio)
      throw ConfigError(
          "--backward-ratio: a report knows how long forwards and backwards take: expected "
          "--report or --backward-ratio, got both");
    const analysis::ReportFile run = analysis::read_report_file(options.report);
    const std::filesystem::path of_run = run.path.parent_path() / "hparams.yaml";
    if (!std::filesystem::exists(of_run))
      throw ConfigError("--report " + options.report +
                        ": expected the run's hparams.yaml next to its report.json: it says which "
                        "layers a stage holds");
    return analysis::stages_by_report(
        load_config(options, options.config.empty() ? of_run.string() : options.config), run,
        trainer::load_run_config(of_run, {}));
  }
  if (!options.config.empty())
    return analysis::stages_by_flops(load_config(options, options.config), ratio);
  if (options.pp == 0 || options.micro_batches == 0) {
    throw ConfigError(
        "which schedule? Expected a configuration, or --pp N --micro-batches M (and --vpp V) for "
        "equal stages");
  }
  return analysis::equal_stages({options.micro_batches, options.pp, std::max(options.vpp, 1)},
                                ratio.value_or(2));
}

void schedule(const ScheduleOptions& options) {
  OutputFiles files({{"--svg", options.svg}});
  Activity activity("building the schedule");
  const analysis::SchedulePlan plan = plan_of(options);
  activity.now("timing the passes of " + std::to_string(plan.shape.num_stages()) + " stages × " +
               std::to_string(plan.shape.num_microbatches) + " micro-batches");
  const trainer::ScheduleTiming timing = trainer::time_schedule(plan.shape, plan.costs);
  std::optional<analysis::BalancedPlan> better;
  if (options.balance) {
    activity.now("looking for better cuts of the layers");
    better = analysis::balanced(plan, timing);
  }
  activity.now("drawing the schedule");
  files.write("--svg", [&] { return analysis::schedule_svg(plan, timing); });
  if (options.json) {
    nlohmann::json document = analysis::schedule_json(plan, timing);
    if (better) document["balanced"] = analysis::schedule_json(better->plan, better->timing);
    std::cout << document.dump(1) << "\n";
  } else {
    std::cout << analysis::schedule_text(plan, timing, options.width);
    if (better) std::cout << "\n" << analysis::balance_text(plan, timing, *better);
  }
  std::cout << std::flush;
  files.finish();
}

}  // namespace

void add_schedule(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("schedule",
                                      "the pipeline picture: what each stage does when, its "
                                      "bubble, activations in flight; better cuts of the layers");
  auto options = std::make_shared<ScheduleOptions>();
  verb->add_option("config", options->config,
                   "NxDT YAML; none: equal stages of --pp, --vpp and --micro-batches, or the "
                   "configuration of --report");
  verb->add_option("overrides", options->overrides, "key.path=value");
  verb->add_option("--pp", options->pp, "pipeline_model_parallel_size")->check(at_least(1));
  verb->add_option("--vpp", options->vpp,
                   "virtual_pipeline_model_parallel_size: virtual stages per rank")
      ->check(at_least(1));
  verb->add_option("--micro-batches", options->micro_batches, "per step and replica")
      ->check(at_least(1));
  verb->add_option("--backward-ratio", options->ratio,
                   "time of a backward in forwards; none: 2, and 3 with full recomputation")
      ->check(above_zero());
  verb->add_option("--report", options->report,
                   "a run's folder: the stages take the simulated time that they took there")
      ->type_name("RUN")
      ->check(not_empty("a run's folder"));
  verb->add_flag("--balance", options->balance,
                 "cuts that make the slowest stage fastest, as model.pipeline_cuts");
  verb->add_option("--svg", options->svg, "draw it")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--width", options->width, "columns of the text picture")
      ->capture_default_str()
      ->check(between(20, 2000, "a line of a terminal"));
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.schedule/1)");
  verb->footer(
      "Examples:\n  trellis schedule --pp 4 --vpp 2 --micro-batches 8\n"
      "  trellis schedule examples/nxdt/hf_llama3_70B_config.yaml trainer.num_nodes=32 --balance "
      "--svg schedule.svg\n"
      "  trellis schedule --report runs/a --balance\n"
      "The order of the passes is the trainer's own. Costs are relative unless a report gives "
      "times. Transfers between stages cost nothing here.");
  verb->callback([options, &exit_code] {
    schedule(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
