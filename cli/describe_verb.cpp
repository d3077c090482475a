#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "sim/config/describe.h"
#include "sim/config/system_config.h"

namespace trellis::cli {

void add_describe(CLI::App& app, int& exit_code) {
  struct Options {
    std::string instance;
    int nodes = 1;
    bool json = false;
  };
  CLI::App* verb = app.add_subcommand("describe", "what hardware is modelled: every parameter with unit, source and evidence");
  auto options = std::make_shared<Options>();
  verb->add_option("instance", options->instance, "e.g. trn1.32xlarge; none: the list of instances");
  verb->add_option("--nodes", options->nodes)->capture_default_str()->check(CLI::PositiveNumber);
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.describe/1)");
  verb->footer("Example:\n  trellis describe trn2.48xlarge");
  verb->callback([options, &exit_code] {
    exit_code = 0;
    if (options->instance.empty()) {
      const std::vector<std::string> names = sim::instance_names();
      if (options->json) {
        std::cout << nlohmann::json({{"schema", "trellis.instances/1"}, {"instances", names}}).dump(1) << "\n";
      } else {
        for (const std::string& name : names) std::cout << name << "\n";
      }
      return;
    }
    const sim::SystemConfig system = sim::load_system(options->instance, options->nodes);
    std::cout << (options->json ? sim::describe(system).dump(1) + "\n" : sim::describe_text(system));
  });
}

}  // namespace trellis::cli
