#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/graphviz.h"
#include "cli/output/output_files.h"
#include "cli/verbs/describe_keys.h"
#include "cli/verbs/verbs.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_software.h"
#include "sim/config/load_system.h"
#include "sim/config/storage_config.h"
#include "sim/config/system_config.h"
#include "sim/describe/describe.h"
#include "sim/describe/drawing.h"
#include "sim/describe/parameters.h"
#include "sim/describe/software_text.h"
#include "sim/describe/storage_text.h"

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

struct StorageOptions {
  std::string name, instance = sim::kTrainingInstance;
  std::vector<std::string> overrides;
  int nodes = 1;
  bool json = false;
};

void describe_storage(const StorageOptions& options) {
  const sim::SystemConfig system = sim::load_system(options.instance, options.nodes);
  const sim::StorageOverrides overrides = sim::split_overrides(options.overrides);
  if (!overrides.machine.empty())
    throw ConfigError("--set " + overrides.machine.front() +
                      ": expected a number of the storage, storage.KEY=VALUE");
  const std::vector<std::string> names =
      options.name.empty() ? sim::storage_names() : std::vector{options.name};
  nlohmann::json rows = nlohmann::json::array();
  std::string text;
  for (const std::string& name : names) {
    const sim::StorageConfig storage = sim::load_storage(name, system, overrides.storage);
    rows.push_back(sim::storage_json(storage));
    text += sim::storage_text(storage, system) + "\n";
  }
  const sim::HostCosts host = sim::load_host_costs(overrides.host);
  text += "Host, whatever the storage: " + sim::parameters_text(host.parameters);
  std::cout << (options.json ? nlohmann::json({{"schema", "trellis.storages/1"},
                                               {"instance", options.instance},
                                               {"nodes", options.nodes},
                                               {"storages", rows},
                                               {"host", sim::parameters_json(host.parameters)}})
                                       .dump(1) +
                                   "\n"
                             : text)
            << std::flush;
}

CLI::App* add_storage(CLI::App& describe) {
  CLI::App* verb = describe.add_subcommand(
      "storage", "where checkpoints may lie: rates, latencies, with source and evidence");
  auto options = std::make_shared<StorageOptions>();
  verb->add_option("name", options->name,
                   "nvme, fsx, s3, or a file FILE.yaml in the form of sim/configs/storage; none: "
                   "the shipped ones");
  verb->add_option("--instance", options->instance, "as seen from this instance type")
      ->capture_default_str();
  verb->add_option("--nodes", options->nodes, "instances that share it")
      ->capture_default_str()
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_option(
          "--set", options->overrides,
          "another number, e.g. storage.capacity=\"12 TiB\", host.restart.compile=\"600 s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.storages/1)");
  verb->footer(
      "Example: trellis describe storage fsx --nodes 16 --set storage.capacity=\"24 TiB\"");
  verb->callback([options] { describe_storage(*options); });
  return verb;
}

void describe_software(const std::string& name, bool json_output) {
  if (name == sim::kNoSoftware)
    throw ConfigError("software none has no numbers: a step is the device's work alone");
  std::vector<std::string> names;
  for (const sim::SoftwareStack& each : sim::software_stacks())
    if (name.empty()) names.push_back(each.name);
  if (!name.empty()) names.push_back(name);
  nlohmann::json rows = nlohmann::json::array();
  std::string text;
  for (const std::string& each : names) {
    rows.push_back(sim::software_json(each));
    text += (text.empty() ? "" : "\n") + sim::software_text(each);
  }
  std::cout
      << (json_output
              ? nlohmann::json({{"schema", "trellis.software/1"}, {"software", rows}}).dump(1) +
                    "\n"
              : text)
      << std::flush;
}

CLI::App* add_software(CLI::App& describe) {
  CLI::App* verb = describe.add_subcommand(
      "software",
      "training software that the key `software` names, by release: what the host does in a step");
  auto name = std::make_shared<std::string>();
  auto json_output = std::make_shared<bool>(false);
  verb->add_option("name", *name, "STACK or STACK@RELEASE, as the key has it; none: every stack");
  verb->add_flag("--json", *json_output, "one JSON document (schema trellis.software/1)");
  verb->footer("Example: trellis describe software nxd@2.20");
  verb->callback([name, json_output] { describe_software(*name, *json_output); });
  return verb;
}

}  // namespace

void add_describe(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "describe",
      "what hardware is modelled: every parameter with unit, source and evidence, totals, wiring; "
      "keys of a configuration; storage for checkpoints; training software");
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
  const CLI::App* storage = add_storage(*verb);
  const CLI::App* software = add_software(*verb);
  verb->callback([verb, keys, storage, software, options, &exit_code] {
    exit_code = 0;
    if (keys->parsed() || storage->parsed() || software->parsed()) return;
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
