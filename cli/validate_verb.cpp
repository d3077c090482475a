#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/validate_report.h"
#include "cli/verbs.h"
#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"

namespace trellis::cli {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string instance;
  int nodes = 0;
  bool json = false;
};

/// A file that is no YAML has one problem.
trainer::RunCheck checked(const Options& options) {
  try {
    trainer::RunCheck check = trainer::check_run_config(options.config, options.overrides);
    if (!options.instance.empty() && check.problems.empty()) {
      sim::LoadOptions load;
      load.nodes = options.nodes > 0 ? options.nodes : check.config.trainer.num_nodes;
      load.logical_core_size = check.config.trainer.lnc;
      const sim::SystemConfig system = sim::load_system(options.instance, load);
      trainer::check_fits_machine(check.config, options.instance, load.nodes, system.logical_cores_per_node());
    }
    return check;
  } catch (const ConfigError& error) {
    trainer::RunCheck check;
    check.problems.emplace_back(error.what());
    return check;
  }
}

int validate(const Options& options) {
  const trainer::RunCheck check = checked(options);
  if (options.json) {
    std::cout << validate_json(options.config, check).dump(1) << "\n";
  } else if (check.problems.empty()) {
    std::cout << validate_text(options.config, check);
  } else {
    std::cerr << problems_text(options.config, check);
  }
  return static_cast<int>(check.problems.empty() ? ExitCode::kOk : ExitCode::kConfig);
}

}  // namespace

void add_validate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("validate", "every mistake of a configuration in one pass, then what it will build; no LibTorch, milliseconds");
  auto options = std::make_shared<Options>();
  verb->add_option("config", options->config, "NxDT YAML")->required();
  verb->add_option("overrides", options->overrides, "key.path=value, e.g. trainer.max_steps=10 model.num_layers=2");
  verb->add_option("--instance", options->instance, "also check that the ranks fit this machine (see `trellis describe`)");
  verb->add_option("--nodes", options->nodes, "how many of them; none: trainer.num_nodes")->check(CLI::PositiveNumber);
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.validate/1)");
  verb->footer("Exit code 0: legal, also when something is not carried out in this version; 2: mistakes.\n"
               "Example:\n  trellis validate examples/nxdt/hf_llama3_70B_config.yaml trainer.num_nodes=32");
  verb->callback([options, &exit_code] { exit_code = validate(*options); });
}

}  // namespace trellis::cli
