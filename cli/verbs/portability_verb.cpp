#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/portability/portability_check.h"
#include "base/error.h"
#include "base/process/run_self.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/machine.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/options/one_process.h"
#include "cli/verbs/verbs.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/requests/portability_request.h"

namespace trellis::cli {
namespace {

using nlohmann::json;

constexpr const char* kTorchNeuron = "torch_neuron";

struct PortabilityOptions {
  trainer::PortabilityRequest request;
  trainer::DeviceRequest device;
  bool json = false;
};

/// In this process.
int operators_of(const PortabilityOptions& options, json& operators) {
  std::string text;
  const int exit_code = call_trainer(&trainer::TrainerLibrary::operators, options.request, text);
  if (exit_code == 0) operators = json::parse(text);
  return exit_code;
}

/// In another process: a device of LibTorch and the emulated one may both be PrivateUse1.
json operators_by_child(const PortabilityOptions& options) {
  std::vector<std::string> arguments = {"portability",
                                        options.request.config_file,
                                        "--json",
                                        "--instance",
                                        options.request.instance,
                                        "--nodes",
                                        std::to_string(options.request.nodes)};
  arguments.insert(arguments.end(), options.request.overrides.begin(),
                   options.request.overrides.end());
  return json::parse(run_self(arguments));
}

int print(const analysis::PortabilityCheck& check, bool as_json) {
  std::cout << (as_json ? analysis::to_json(check).dump(1) + "\n"
                        : analysis::portability_text(check))
            << std::flush;
  return static_cast<int>(check.works() ? ExitCode::kOk : ExitCode::kConfig);
}

int check_device(const PortabilityOptions& options) {
  const json operators = operators_by_child(options);
  const std::string text = operators.dump();
  std::string found;
  const int exit_code =
      call_trainer(&trainer::TrainerLibrary::check_operators, options.device, text, found);
  if (exit_code != 0) return exit_code;
  return print(analysis::check_for_device(operators, json::parse(found)), options.json);
}

int check_torch_neuron(const PortabilityOptions& options, const json& operators) {
  trainer::RunConfig config = trainer::load_run_config(
      options.request.config_file, options.request.overrides, options.request.instance);
  sim::LoadOptions load;
  load.nodes = options.request.nodes;
  config.hardware = sim::load_system(options.request.instance, load).chip.generation;
  return print(analysis::check_for_torch_neuron(config, operators), options.json);
}

int portability(PortabilityOptions& options) {
  refuse_several_processes("portability");
  choose_machine(options.request);
  const std::string& target = options.device.device;
  if (!options.device.library.empty() && (target.empty() || target == kTorchNeuron)) {
    throw ConfigError("--device-library " + options.device.library +
                      ": expected also --for, with the device that it registers");
  }
  if (!target.empty() && target != kTorchNeuron) return check_device(options);
  json operators;
  if (const int exit_code = operators_of(options, operators); exit_code != 0) return exit_code;
  if (target == kTorchNeuron) return check_torch_neuron(options, operators);
  std::cout << (options.json ? operators.dump(1) + "\n" : analysis::operators_text(operators))
            << std::flush;
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

void add_portability(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "portability",
      "which operators a run uses, with which types and in which layers, and which of them another "
      "device does not have; nothing is timed");
  auto options = std::make_shared<PortabilityOptions>();
  options->request.instance.clear();
  options->request.nodes = 0;
  verb->add_option("config", options->request.config_file, "NxDT YAML")
      ->required()
      ->check(not_empty("a file"));
  verb->add_option("overrides", options->request.overrides,
                   "key.path=value, e.g. model.num_layers=2");
  verb->add_option("--for", options->device.device,
                   "torch_neuron (AWS's TorchNeuron, by its documents), or a device of LibTorch "
                   "that is here: cuda, xpu, privateuse1, …; none: the list alone")
      ->type_name("DEVICE")
      ->check(not_empty("a device"));
  verb->add_option("--device-library", options->device.library,
                   "shared library that registers the device with LibTorch when it is loaded")
      ->type_name("PATH")
      ->check(not_empty("a file name"));
  verb->add_option("--instance", options->request.instance,
                   "machine to emulate (see `trellis describe`); none: the configuration's "
                   "`instance`, else trn1.32xlarge");
  verb->add_option("--nodes", options->request.nodes, "how many of them; none: trainer.num_nodes")
      ->check(between(1, kMostNodes, "more than any cluster has"));
  verb->add_flag("--json", options->json,
                 "one JSON document on stdout (schema trellis.portability/1; with --for "
                 "trellis.portability_check/1)");
  verb->footer(
      "Examples:\n  trellis portability examples/quickstart.yaml --for torch_neuron\n"
      "  trellis portability examples/quickstart.yaml --for privateuse1 --device-library "
      "libdevice.so\n"
      "The trainer runs one step without data on the emulated device, one rank of each class of "
      "equal ranks. Whether a device of LibTorch has a kernel of an\n"
      "operator says LibTorch's dispatcher; what a kernel does with a type that it does not have "
      "shows only when it runs. Exit code 0: the run works there;\n"
      "2: an operator is lacking, or a requirement is not met.");
  verb->callback([options, &exit_code] { exit_code = portability(*options); });
}

}  // namespace trellis::cli
