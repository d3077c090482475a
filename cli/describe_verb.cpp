#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/describe_keys.h"
#include "cli/graphviz.h"
#include "cli/not_empty.h"
#include "cli/output_files.h"
#include "cli/verbs.h"
#include "sim/config/system_config.h"
#include "sim/describe/describe.h"
#include "sim/describe/drawing.h"

namespace trellis::cli {
namespace {

struct DescribeOptions {
  std::string instance;
  std::string topology;
  sim::LoadOptions load;
  bool json = false;
};

void list_instances(bool json_output) {
  const std::vector<std::string> names = sim::instance_names();
  if (json_output) {
    std::cout << nlohmann::json({{"schema", "trellis.instances/1"}, {"instances", names}}).dump(1)
              << "\n";
    return;
  }
  for (const std::string& name : names) std::cout << name << "\n";
}

void describe_instance(const DescribeOptions& options) {
  const sim::SystemConfig system = sim::load_system(options.instance, options.load);
  OutputFiles files({{"--topology", options.topology}});
  const std::string graph =
      options.topology.empty() ? "" : graph_content(options.topology, sim::drawing(system));
  files.write("--topology", [&] { return graph; });
  std::cout << (options.json ? sim::describe(system).dump(1) + "\n" : sim::describe_text(system))
            << std::flush;
  files.finish();
}

/// Returns the subcommand, so that `describe` itself stays silent when it was asked for.
CLI::App* add_keys(CLI::App& describe) {
  CLI::App* verb = describe.add_subcommand(
      "keys", "the keys of a configuration: type, default, and which have no effect");
  auto section = std::make_shared<std::string>();
  auto json_output = std::make_shared<bool>(false);
  verb->add_option("section", *section, "e.g. model.optim; top: the top level; none: all sections");
  verb->add_flag("--json", *json_output, "one JSON document (schema trellis.keys/1)");
  verb->footer("Example: trellis describe keys distributed_strategy");
  verb->callback(
      [section, json_output] { std::cout << describe_keys(*section, *json_output) << std::flush; });
  return verb;
}

}  // namespace

void add_describe(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "describe",
      "what hardware is modelled: every parameter with unit, source and evidence, totals, wiring; "
      "keys of a configuration");
  auto options = std::make_shared<DescribeOptions>();
  verb->add_option("instance", options->instance,
                   "e.g. trn1.32xlarge; none: the list of instances");
  verb->add_option("--nodes", options->load.nodes, "instances; an UltraServer has several")
      ->capture_default_str();
  verb->add_option("--lnc", options->load.logical_core_size,
                   "physical cores per logical core, 1 or 2; none: the instance's default");
  verb->add_option("--set", options->load.overrides,
                   "another hardware number, e.g. network.oversubscription=2")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--topology", options->topology,
                   "draw chips and links, to FILE.svg (with Graphviz) or FILE.dot")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.describe/1)");
  verb->footer(
      "Examples:\n  trellis describe trn2u.48xlarge --nodes 4 --topology ultraserver.svg\n"
      "  trellis describe keys model.optim");
  const CLI::App* keys = add_keys(*verb);
  verb->callback([verb, keys, options, &exit_code] {
    exit_code = 0;
    if (keys->parsed()) return;
    if (!options->instance.empty()) return describe_instance(*options);
    for (const char* option : {"--nodes", "--lnc", "--set", "--topology"}) {
      if (verb->count(option) > 0)
        throw ConfigError(std::string(option) +
                          ": of which instance? Expected trellis describe INSTANCE " + option +
                          " …");
    }
    list_instances(options->json);
  });
}

}  // namespace trellis::cli
