#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/import/import_report.h"
#include "analysis/import/sources.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/options/accept_option.h"
#include "cli/options/not_empty.h"
#include "cli/output/output_files.h"
#include "cli/verbs/checkpoint_import.h"
#include "cli/verbs/verbs.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::cli {
namespace {

struct ImportOptions {
  std::string file, from = "auto", out, training_args, checkpoint, output_checkpoint;
  std::vector<std::string> overrides;
  AcceptedKeys accepted;
  bool all = false, json = false, force = false, weights_only = false, verify = false;
};

/// Where the result will be.
std::filesystem::path result_file(const ImportOptions& options, bool is_yaml) {
  if (!options.out.empty()) return options.out;
  return is_yaml ? std::filesystem::path(options.file) : "imported.yaml";
}

analysis::ImportedConfig read(const ImportOptions& options) {
  const std::string from =
      options.from == "auto" ? analysis::detect_source(options.file) : options.from;
  const bool is_yaml = from == "nxdt" || from == "nemo";
  if (!is_yaml && !options.overrides.empty())
    throw ConfigError("overrides (" + options.overrides.front() +
                      "): expected with YAML files only, got a source of " + from +
                      ": change the file that is written");
  if (from != "hf" && !options.training_args.empty())
    throw ConfigError("--training-args: expected with --from hf only, got " + from);
  if (from == "nxdt") return analysis::import_nxdt(options.file, options.overrides);
  if (from == "nemo") return analysis::import_nemo(options.file, options.overrides);
  if (from == "megatron") return analysis::import_megatron(options.file);
  if (from == "torchtitan") return analysis::import_torchtitan(options.file);
  return analysis::import_hugging_face(options.file, options.training_args);
}

/// In the layout of the configuration that was written.
int import_weights(const ImportOptions& options, const std::string& from) {
  trainer::ReshardRequest request;
  request.config_file = options.out;
  add_accepted(options.accepted, request.overrides);
  request.source = options.checkpoint;
  request.destination = options.output_checkpoint;
  request.source_format = from == "hf" ? "hugging_face" : "";
  request.weights_only = options.weights_only || from == "hf";
  return import_checkpoint(request, options.verify);
}

int import(const ImportOptions& options) {
  if (!options.force) refuse_to_replace("--out", options.out);
  OutputFiles files({{"--out", options.out}});
  analysis::ImportedConfig imported = read(options);
  const bool is_yaml = imported.from == "nxdt" || imported.from == "nemo";
  const std::filesystem::path result = result_file(options, is_yaml);
  analysis::move_paths(imported, is_yaml ? std::filesystem::path(options.file).parent_path() : ".",
                       result.parent_path());
  const std::string yaml = analysis::import_yaml(imported, options.file);
  const trainer::RunCheck check = trainer::check_run_config_text(yaml, result.string());
  files.write("--out", [&] { return yaml; });
  files.finish();
  if (options.json) {
    std::cout << analysis::import_json(imported, options.file, check.problems).dump(1) << "\n";
  } else {
    std::cout << analysis::import_text(imported, options.all);
    for (const std::string& problem : check.problems)
      std::cout << "problem of the result: " << terminal_line(problem) << "\n";
    if (!options.out.empty()) std::cout << "written: " << terminal_line(options.out) << "\n";
  }
  const bool known = analysis::count(imported, analysis::ImportStatus::kUnclassified) == 0;
  const bool is_legal = known && check.problems.empty();
  if (is_legal && !options.checkpoint.empty()) return import_weights(options, imported.from);
  if (!options.checkpoint.empty())
    std::cerr << "error: --checkpoint: not imported: correct the configuration first\n";
  return static_cast<int>(is_legal ? ExitCode::kOk : ExitCode::kConfig);
}

void add_weights(CLI::App& verb, ImportOptions& options, CLI::Option* out, CLI::Option* as_json) {
  CLI::Option* checkpoint =
      verb.add_option("--checkpoint", options.checkpoint,
                      "of the training that the configuration is of: NxD, NxDT, NeMo-Megatron for "
                      "Neuron, Megatron's torch_dist or Hugging Face")
          ->type_name("FOLDER")
          ->check(not_empty("a folder"))
          ->needs(out)
          ->excludes(as_json);
  CLI::Option* output =
      verb.add_option("--output-checkpoint", options.output_checkpoint,
                      "a new folder, local or s3://bucket/prefix: the checkpoint in the layout of "
                      "the result, which `train` goes on from")
          ->type_name("FOLDER")
          ->check(not_empty("a folder"))
          ->needs(checkpoint);
  checkpoint->needs(output);
  verb.add_flag("--weights-only", options.weights_only, "of the checkpoint, no optimizer states")
      ->needs(checkpoint);
  verb.add_flag("--verify", options.verify,
                "then read the checkpoint back and compare every weight with the source's: those "
                "that differ most are shown, exit code 5")
      ->needs(checkpoint);
}

}  // namespace

void add_import(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "import",
      "turns a configuration of NxDT, NeMo, Megatron-LM, torchtitan or Hugging Face into one of "
      "this program, and says what becomes of each key");
  auto options = std::make_shared<ImportOptions>();
  verb->add_option(
          "file", options->file,
          "a YAML file; a shell script or text with Megatron-LM's arguments, which is "
          "never executed; a TOML file of torchtitan, or the JSON that its 0.3 writes; a Hugging "
          "Face folder or config.json")
      ->check(not_empty("a file"))
      ->required();
  verb->add_option("overrides", options->overrides, "key.path=value, of a YAML file");
  verb->add_option("--from", options->from, "whose configuration it is; auto: by what it holds")
      ->check(CLI::IsMember({"auto", "nxdt", "nemo", "megatron", "torchtitan", "hf"}))
      ->capture_default_str();
  verb->add_option("--training-args", options->training_args,
                   "transformers' TrainingArguments as JSON; none: training_args.json of the "
                   "folder, if there is one")
      ->type_name("FILE");
  CLI::Option* out =
      verb->add_option("--out", options->out, "where to write the YAML file")->type_name("FILE");
  verb->add_flag("--force", options->force, "replace --out");
  verb->add_flag("--all", options->all, "list every key, also those that stay as they are");
  CLI::Option* json =
      verb->add_flag("--json", options->json, "one JSON document (schema trellis.import/1)");
  add_weights(*verb, *options, out, json);
  options->accepted = add_accept_option(*verb);
  verb->footer(
      "Exit code 0: every key is mapped, default, ignored or unsupported, and the result is "
      "legal; 2: a key is unclassified, or `trellis validate` would refuse the result; 5: with "
      "--verify, a weight is not the source's.\n"
      "Examples:\n  trellis import megatron_gpt_config.yaml --out gpt.yaml\n"
      "  trellis import --from megatron train_llama3_8b.sh --out llama3_8b.yaml\n"
      "  trellis import train.sh --out a.yaml --checkpoint iter_0000100 --output-checkpoint a.ckpt "
      "--verify");
  verb->callback([options, &exit_code] { exit_code = import(*options); });
}

}  // namespace trellis::cli
