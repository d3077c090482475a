#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/explain/explanation.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/process/parallel_for.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"
#include "trainer/config/run_config.h"
#include "trainer/config/step_place.h"

namespace trellis::cli {
namespace {

struct ExplainOptions {
  analysis::StepQuestion step;
  std::vector<std::string> constants;
  std::size_t rows = 5, top = 12;
  int jobs = 0;
  std::string svg, html;
  bool json = false;
};

/// The uncertain numbers of the machine that were asked for.
std::vector<analysis::UncertainConstant> constants_of(const ExplainOptions& options,
                                                      const trainer::RunConfig& config) {
  sim::LoadOptions load;
  load.nodes = options.step.nodes;
  load.overrides = options.step.hardware;
  auto all =
      analysis::uncertain_constants(trainer::load_machine(config, options.step.instance, load));
  if (options.constants.empty()) return all;
  std::erase_if(all, [&](const analysis::UncertainConstant& each) {
    return std::ranges::none_of(options.constants, [&](const std::string& glob) {
      return fnmatch(glob.c_str(), each.parameter.key.c_str(), 0) == 0;
    });
  });
  if (all.empty())
    throw ConfigError(fmt::format(
        "--constant {}: no number of {} that is known to a range only has such a key: "
        "`trellis describe {}` lists them",
        fmt::join(options.constants, ", "), options.step.instance, options.step.instance));
  return all;
}

/// The arguments that ask for this step, for a shell.
analysis::ExplainedRun shell_words(const analysis::StepQuestion& step) {
  analysis::ExplainedRun run{.config = shell_word(step.config_file)};
  for (const std::string& each : step.overrides) run.config += " " + shell_word(each);
  run.machine = fmt::format(" --instance {} --nodes {}", shell_word(step.instance), step.nodes);
  for (const std::string& number : step.hardware) run.machine += " --set " + shell_word(number);
  return run;
}

analysis::Explanation explain(const ExplainOptions& options) {
  const analysis::StepQuestion& step = options.step;
  const trainer::RunConfig config = trainer::load_run_config(step);
  trainer::refuse_unsupported(config, true);
  analysis::Explanation explanation;
  explanation.run = shell_words(step);
  explanation.name = config.name;
  explanation.instance = step.instance;
  explanation.nodes = step.nodes;
  explanation.most_constants = options.top;
  const analysis::StepPlace place =
      analysis::step_place(config, step.instance, step.nodes, step.hardware);
  explanation.validity = analysis::judge_validity(analysis::read_validated_record(), place);
  explanation.neighbours = analysis::nearest_rows(place, options.rows);
  explanation.parts = analysis::part_accuracies(analysis::generation_of(step.instance));
  const std::size_t jobs = options.jobs > 0 ? static_cast<std::size_t>(options.jobs) : host_cores();
  explanation.sensitivity = analysis::measure_sensitivity(
      step, constants_of(options, config), jobs,
      std::filesystem::temp_directory_path() / fmt::format("trellis_explain_{}", ::getpid()));
  return explanation;
}

void run(ExplainOptions& options) {
  choose_machine(options.step);
  OutputFiles files({{"--svg", options.svg}, {"--html", options.html}});
  const analysis::Explanation explanation = explain(options);
  files.write("--svg", [&] { return analysis::tornado_svg(explanation); });
  files.write("--html", [&] { return analysis::explain_page(explanation); });
  std::cout << (options.json ? analysis::explain_json(explanation).dump(1) + "\n"
                             : analysis::explain_text(explanation))
            << std::flush;
  files.finish();
}

void output_options(CLI::App& verb, ExplainOptions& options) {
  verb.add_option("--rows", options.rows, "so many nearest published steps")
      ->capture_default_str()
      ->check(at_least(1));
  verb.add_option("--top", options.top, "so many constants in the text and in the picture")
      ->capture_default_str()
      ->check(at_least(1));
  verb.add_option("--svg", options.svg,
                  "a tornado: one bar per constant, from the step at one end of its range to the "
                  "step at the other")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_option("--html", options.html, "one page without network: the tornado and all tables")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb.add_flag("--json", options.json, "one JSON document (schema trellis.explain/1)");
}

constexpr const char* kFooter =
    "What it shows:\n"
    "  range      where the range of `trellis simulate` comes from: the factor of the published "
    "steps that are like this one,\n"
    "             1.1 times wider for each doubling and each property beyond them\n"
    "  rows       the nearest published steps, and how far off their predictions are\n"
    "  parts      where the step's time goes, and how far off predictions of such parts are "
    "(`trellis accuracy`)\n"
    "  constants  numbers of the machine whose source gives a range: the step at both ends, which "
    "is what\n"
    "             `trellis simulate --set KEY=VALUE` gives, to the picosecond\n"
    "  measure    what to run on one rented instance to narrow the ranges that matter most\n"
    "Each constant takes two simulations; --constant asks about some of them only.\n"
    "Examples:\n"
    "  trellis explain examples/llama3_8b_trn1.yaml\n"
    "  trellis explain examples/llama3_8b_trn1.yaml --constant 'collectives.*' --svg tornado.svg\n"
    "  trellis explain examples/llama3_8b_trn1.yaml --set collectives.core_rate=\"60 GB/s\"";

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "explain", "why this prediction, how sure it is, and what to measure to be surer");
  auto options = std::make_shared<ExplainOptions>();
  options->step.nodes = 0;
  options->step.instance.clear();
  verb->add_option("config", options->step.config_file, "NxDT YAML")->required();
  verb->add_option("overrides", options->step.overrides, "key.path=value");
  verb->add_option(
      "--instance", options->step.instance,
      "machine (see `trellis describe`); none: the configuration's `instance`, else trn1.32xlarge");
  verb->add_option("--nodes", options->step.nodes, "how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_option("--set", options->step.hardware,
                   "another hardware number, e.g. one that you measured: "
                   "core.dma.engine_rate=\"20 GB/s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--constant", options->constants,
                   "only constants whose key matches, e.g. 'collectives.*'; again for more")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  verb->add_option(
          "--jobs", options->jobs,
          "simulations at the same time; 0: one per host core. Results do not depend on it")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a process"));
  output_options(*verb, *options);
  verb->footer(kFooter);
  verb->callback([options, &exit_code] {
    run(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
