#include <iostream>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/export/exported_config.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/options/not_empty.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "traces/report/text_table.h"

namespace trellis::cli {
namespace {

using nlohmann::json;

struct ExportOptions {
  std::string file, to, out;
  std::vector<std::string> overrides;
  bool json = false, force = false;
};

using Exporter = analysis::ExportedConfig (*)(const std::string& file,
                                              const std::vector<std::string>& overrides);
const std::map<std::string, Exporter>& exporters() {
  static const std::map<std::string, Exporter> all = {
      {"nxdt", analysis::export_nxdt},
      {"megatron-args", analysis::export_megatron},
      {"optimum-neuron", analysis::export_optimum_neuron},
      {"torchtitan", analysis::export_torchtitan},
  };
  return all;
}

std::string left_out_text(const analysis::ExportedConfig& exported) {
  using Align = analysis::TextTable::Align;
  analysis::TextTable table(
      {{"left out", Align::kLeft}, {"value", Align::kLeft}, {"why", Align::kLeft}});
  for (const analysis::LeftOut& key : exported.left_out) table.add({key.key, key.value, key.why});
  return table.empty() ? "" : table.text();
}

json document(const ExportOptions& options, const analysis::ExportedConfig& exported) {
  json left_out = json::array();
  for (const analysis::LeftOut& key : exported.left_out)
    left_out.push_back(
        {{"key", key.key}, {"value", key.value}, {"where", key.where}, {"why", key.why}});
  return {{"schema", "trellis.export/1"},
          {"source", options.file},
          {"to", options.to},
          {"text", exported.text},
          {"left_out", left_out}};
}

int export_config(const ExportOptions& options) {
  if (!options.force) refuse_to_replace("--out", options.out);
  OutputFiles files({{"--out", options.out}});
  const analysis::ExportedConfig exported =
      exporters().at(options.to)(options.file, options.overrides);
  files.write("--out", [&] { return exported.text; });
  files.finish();
  if (options.json) {
    std::cout << document(options, exported).dump(1) << "\n";
  } else if (options.out.empty()) {
    std::cerr << left_out_text(exported);
    std::cout << exported.text;
  } else {
    std::cout << left_out_text(exported) << "written: " << terminal_line(options.out) << "\n";
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "export",
      "writes a configuration for the program that will run it on hardware, and lists "
      "what that one does not have");
  auto options = std::make_shared<ExportOptions>();
  verb->add_option("file", options->file, "a configuration of this program")
      ->check(not_empty("a file"))
      ->required();
  verb->add_option("overrides", options->overrides,
                   "key.path=value, such as the layout that `trellis sweep` found");
  verb->add_option(
          "--to", options->to,
          "for which program: nxdt, NxD Training's YAML; megatron-args, a script that runs "
          "Megatron-LM; torchtitan, its TOML (up to version 0.2.2); optimum-neuron, its "
          "training arguments as JSON")
      ->check(CLI::IsMember(exporters()))
      ->required();
  verb->add_option("--out", options->out, "where to write it; none: on stdout")->type_name("FILE");
  verb->add_flag("--force", options->force, "replace --out");
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.export/1)");
  verb->footer(
      "Example:\n  trellis export --to nxdt llama.yaml "
      "distributed_strategy.tensor_model_parallel_size=8 --out nxdt.yaml");
  verb->callback([options, &exit_code] { exit_code = export_config(*options); });
}

}  // namespace trellis::cli
