#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/number_text.h"
#include "cli/options/accept_option.h"
#include "cli/options/not_empty.h"
#include "cli/verbs/checkpoint_parts.h"
#include "trainer/files/checkpoint/adapters/peft_folder.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/saved_config.h"

namespace trellis::cli {
namespace {

struct AdapterRequest {
  std::string checkpoint, out, base, config_file;
  std::vector<std::string> overrides;
  bool json = false;
};

void export_adapter(const AdapterRequest& request) {
  const Activity activity("writing adapters");
  const auto source = checkpoint::open_checkpoint(request.checkpoint);
  const trainer::RunConfig config =
      checkpoint::checked_config_of(*source, request.config_file, request.overrides);
  if (!config.model.lora)
    throw ConfigError((request.config_file.empty() ? source->address() : request.config_file) +
                      ":model_alignment_strategy.peft: missing: expected that of the training, "
                      "which has the adapters' rank and scale");
  const checkpoint::Place out = checkpoint::open_place(request.out);
  const auto folder = checkpoint::adapters::write_peft_folder(*source, *config.model.lora,
                                                              {.base_model = request.base}, out);
  if (request.json) {
    std::cout << nlohmann::json({{"schema", "trellis.checkpoint_adapter/1"},
                                 {"folder", out.address()},
                                 {"adapters", folder.adapters},
                                 {"bytes", folder.bytes},
                                 {"parameters", folder.parameters}})
                     .dump(1)
              << "\n";
  } else {
    std::cout << fmt::format("{}: adapters of {} modules, {} parameters, {}\n",
                             terminal_line(out.address()), folder.adapters, folder.parameters,
                             human_bytes(folder.bytes));
  }
}

}  // namespace

void add_checkpoint_export_adapter(CLI::App& checkpoint, int& exit_code) {
  CLI::App* verb = checkpoint.add_subcommand(
      "export-adapter", "writes the LoRA adapters of a training as a folder that PEFT loads");
  auto request = std::make_shared<AdapterRequest>();
  verb->add_option("checkpoint", request->checkpoint, "of a training with adapters")->required();
  verb->add_option("--out", request->out, "a new folder, local or s3://bucket/prefix")
      ->check(not_empty("a folder"))
      ->required();
  verb->add_option("--base", request->base,
                   "name or folder of the model that was adapted: base_model_name_or_path of "
                   "adapter_config.json")
      ->type_name("NAME");
  verb->add_option("--config", request->config_file,
                   "NxDT YAML of the training, in place of the one that the checkpoint was saved "
                   "with")
      ->type_name("YAML");
  verb->add_option("--set", request->overrides, "key.path=value of that configuration")
      ->type_name("KEY=VALUE");
  verb->add_flag("--json", request->json, "one JSON document");
  verb->footer(
      "Example:\n  trellis checkpoint export-adapter run/checkpoints/a.ckpt --out adapter --base "
      "Llama-3-8B\n"
      "A model with the adapters in its weights: trellis checkpoint export-hf --merge-adapters");
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->callback([request, accepted, &exit_code] {
    add_accepted(accepted, request->overrides);
    export_adapter(*request);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
