#include <iostream>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/accuracy/program_run.h"
#include "analysis/accuracy/replay_report.h"
#include "base/error.h"
#include "base/files/input_file.h"
#include "cli/options/not_empty.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "sim/config/default_instance.h"
#include "sim/profile/import.h"
#include "traces/perfetto_writer.h"

namespace trellis::cli {

namespace {

struct IsaOptions {
  std::string file, output, trace, instance, transfers = "traced";
  std::vector<std::string> overrides;
  bool json = false;
};

void write_trace(OutputFiles& files, const traces::Timeline& timeline) {
  files.write("--trace", [&] {
    std::ostringstream trace;
    traces::write_perfetto(timeline, trace);
    return trace.str();
  });
}

int run_import(const IsaOptions& options) {
  OutputFiles files({{"--output", options.output}});
  const sim::Profile profile = sim::read_profile(options.file);
  const sim::SystemConfig system =
      analysis::replay_machine(analysis::machine_of(profile, options.instance), options.overrides);
  const sim::ImportedProgram imported = sim::import_program(profile, system.chip.core.limits);
  const std::string text = print(imported.program);
  files.write("--output", [&] { return text; });
  if (options.output.empty()) std::cout << text;
  std::cerr << fmt::format("{}: {} instructions, {} transfers\n", options.file,
                           imported.program.instruction_count(), imported.transfers.size());
  for (const std::string& note : imported.notes) std::cerr << "not expressed: " << note << "\n";
  files.finish();
  return 0;
}

int replay_program(const IsaOptions& options, const std::string& text) {
  OutputFiles files({{"--trace", options.trace}});
  const analysis::ProgramRun run = analysis::run_program(
      text, options.file, options.instance.empty() ? sim::kProgramInstance : options.instance,
      options.overrides);
  write_trace(files, analysis::program_timeline(run));
  std::cout << (options.json ? analysis::program_json(run).dump(1) + "\n"
                             : analysis::program_text(run));
  files.finish();
  return 0;
}

int run_replay(const IsaOptions& options, bool transfers_given) {
  const std::string bytes = read_input_file(options.file);
  if (!sim::looks_like_profile(bytes)) {
    if (transfers_given && options.transfers == "traced")
      throw ConfigError(options.file +
                        ": --transfers traced needs a profile, this is a program's text: leave it "
                        "out");
    return replay_program(options, bytes);
  }
  OutputFiles files({{"--trace", options.trace}});
  const analysis::Replay replay =
      analysis::replay(sim::parse_profile(bytes, options.file),
                       {.transfers = options.transfers == "traced" ? analysis::Transfers::kTraced
                                                                   : analysis::Transfers::kModelled,
                        .instance = options.instance,
                        .overrides = options.overrides});
  write_trace(files, analysis::replay_timeline(replay));
  std::cout << (options.json ? analysis::replay_json(replay).dump(1) + "\n"
                             : analysis::replay_text(replay));
  files.finish();
  return 0;
}

void add_machine(CLI::App& verb, IsaOptions& options, const std::string& instance) {
  verb.add_option("--instance", options.instance, instance);
  verb.add_option("--set", options.overrides,
                  "another hardware number, e.g. core.vector.interval_cycles=64")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_import_to(CLI::App& isa, int& exit_code) {
  CLI::App* verb = isa.add_subcommand(
      "import",
      "a profile of a core, as neuron-profile exports it → a program of our instructions");
  auto options = std::make_shared<IsaOptions>();
  verb->add_option("profile", options->file, "PROFILE.json or PROFILE.json.xz")->required();
  verb->add_option("--output", options->output, "the program's text; default: standard output")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  add_machine(*verb, *options, "the machine whose rules hold; default: the profile's");
  verb->footer(
      "What our instructions do not express is listed on standard error, each with its first "
      "instruction.\nExample:\n"
      "  trellis isa import profile.json.xz --output kernel.isa");
  verb->callback([options, &exit_code] { exit_code = run_import(*options); });
}

void add_replay_to(CLI::App& isa, int& exit_code) {
  CLI::App* verb = isa.add_subcommand(
      "replay", "a profile's program in the simulator: the error of every instruction's start");
  auto options = std::make_shared<IsaOptions>();
  verb->add_option("profile", options->file,
                   "PROFILE.json, PROFILE.json.xz, or a program's text (timed only)")
      ->required();
  CLI::Option* transfers =
      verb->add_option("--transfers", options->transfers,
                       "traced: DMA transfers take from their trigger to their last data what they "
                       "took on the device, and so does the program's start; modelled: simulated")
          ->capture_default_str()
          ->check(CLI::IsMember({"traced", "modelled"}));
  add_machine(*verb, *options,
              "the machine; default: the profile's, or trn2.48xlarge for a program's text");
  verb->add_option("--trace", options->trace,
                   "a Perfetto trace of both, the device's above the simulated one")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.replay/1)");
  verb->footer(
      "Times start at the first instruction of the trace. The machine is one physical core with "
      "the "
      "numbers that were read off\ninstruction traces; the answer lists them.\nExamples:\n"
      "  trellis isa replay profile.json.xz --trace both.pftrace\n"
      "  trellis isa replay profile.json --transfers modelled --json");
  verb->callback([options, transfers, &exit_code] {
    exit_code = run_replay(*options, transfers->count() > 0);
  });
}

}  // namespace

void add_isa(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "isa", "instruction traces of real cores: imported as programs, and replayed");
  verb->require_subcommand(1);
  add_import_to(*verb, exit_code);
  add_replay_to(*verb, exit_code);
}

}  // namespace trellis::cli
