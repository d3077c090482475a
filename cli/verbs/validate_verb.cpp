#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/validate/validate_report.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/options/ci_options.h"
#include "cli/options/machine.h"
#include "cli/options/number_range.h"
#include "cli/verbs/verbs.h"
#include "trainer/config/check_fits_machine.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/machine.h"

namespace trellis::cli {
namespace {

using nlohmann::json;

struct ValidateOptions {
  std::vector<std::string> inputs;  ///< files and overrides, as they were given
  std::vector<std::string> files, overrides;
  Machine machine;
  analysis::CiFiles ci;
  bool json = false;
};

/// Splits what was given: "key.path=value" is an override, unless a file has that name.
void sort_inputs(ValidateOptions& options) {
  std::error_code ignored;  // an override may be longer than the name of a file can be
  for (const std::string& input : options.inputs) {
    const bool is_override = !options.files.empty() && input.find('=') != std::string::npos &&
                             !std::filesystem::exists(input, ignored);
    (is_override ? options.overrides : options.files).push_back(input);
  }
}

/// A file that is no YAML has one problem.
trainer::RunCheck checked(const std::string& file, const ValidateOptions& options) {
  try {
    const std::string instance = machine_of(file, options.overrides, options.machine).instance;
    trainer::RunCheck check = trainer::check_run_config(file, options.overrides, instance);
    const bool on_machine =
        !options.machine.instance.empty() || !check.config.machine.instance.empty();
    if (on_machine && check.problems.empty()) {
      const Machine machine = machine_of(check.config, options.machine);
      sim::LoadOptions load;
      load.nodes = machine.nodes;
      trainer::check_fits_machine(check.config,
                                  trainer::load_machine(check.config, machine.instance, load));
    }
    return check;
  } catch (const ConfigError& error) {
    trainer::RunCheck check;
    for (const Problem& problem : parse_problems(error.what(), terminal_line(file)))
      check.problems.push_back(problem.text);
    return check;
  }
}

/// One document of several: trellis.validate_files/1.
json documents(const std::vector<json>& files, bool ok) {
  return {{"schema", "trellis.validate_files/1"}, {"ok", ok}, {"files", files}};
}

int validate(ValidateOptions& options) {
  sort_inputs(options);
  std::vector<analysis::Check> checks;
  std::vector<json> files;
  std::string texts;
  bool ok = true;
  for (const std::string& file : options.files) {
    const trainer::RunCheck check = checked(file, options);
    ok = ok && check.problems.empty();
    checks.push_back({file, analysis::problems_of(file, check)});
    if (options.json) {
      files.push_back(analysis::validate_json(file, check));
    } else if (check.problems.empty()) {
      texts += (texts.empty() ? "" : "\n") + analysis::validate_text(file, check);
    } else {
      std::cerr << analysis::problems_text(file, check);
    }
  }
  options.ci.write("trellis validate", checks);
  std::cout << (options.json ? (files.size() == 1 ? files[0] : documents(files, ok)).dump(1) + "\n"
                             : texts);
  return static_cast<int>(ok ? ExitCode::kOk : ExitCode::kConfig);
}

}  // namespace

void add_validate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("validate",
                                      "every mistake of a configuration in one pass, then what it "
                                      "will build; no LibTorch, milliseconds");
  auto options = std::make_shared<ValidateOptions>();
  verb->add_option("inputs", options->inputs,
                   "NxDT YAML files, and overrides of all of them: key.path=value, e.g. "
                   "trainer.max_steps=10 model.num_layers=2")
      ->required();
  verb->add_option("--instance", options->machine.instance,
                   "check that the ranks fit this machine (see `trellis describe`); none: the "
                   "configuration's `instance`");
  verb->add_option("--nodes", options->machine.nodes, "how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_flag("--json", options->json,
                 "one JSON document (schema trellis.validate/2): problems as fields file, line, "
                 "key, expected, got; of several files trellis.validate_files/1");
  add_ci_options(*verb, options->ci);
  verb->footer(
      "Exit code 0: legal, also when something is not supported in this version; 2: mistakes in "
      "one of the files.\n"
      "Examples:\n  trellis validate examples/nxdt/hf_llama3_70B_config.yaml trainer.num_nodes=32\n"
      "  trellis validate configs/*.yaml --junit validate.xml --sarif validate.sarif");
  verb->callback([options, &exit_code] { exit_code = validate(*options); });
}

}  // namespace trellis::cli
