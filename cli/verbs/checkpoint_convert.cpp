#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/number_text.h"
#include "cli/launch/load_trainer.h"
#include "cli/options/accept_option.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/verbs/checkpoint_hub.h"
#include "cli/verbs/checkpoint_import.h"
#include "cli/verbs/checkpoint_parts.h"
#include "trainer/files/checkpoint/conversion/full_writer.h"
#include "trainer/files/checkpoint/conversion/megatron_writer.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/saved_config.h"
#include "trainer/requests/reshard_request.h"

namespace trellis::cli {
namespace {

using checkpoint::Place;
using checkpoint::TensorSource;
using trainer::ReshardRequest;

struct ConvertRequest {
  ReshardRequest native;  ///< what all of them share
  std::string to, dtype;
  int heads = 0, kv_heads = 0;
};

int reshard(const ReshardRequest& request) {
  return call_trainer(&trainer::TrainerLibrary::reshard, request);
}

void add_target(CLI::App& verb, ReshardRequest& request) {
  verb.add_option("--out", request.destination, "a new folder, local or s3://bucket/prefix")
      ->check(not_empty("a folder"))
      ->required();
  verb.add_option("--config", request.config_file,
                  "NxDT YAML; none: the one that the checkpoint was saved with")
      ->type_name("YAML");
  verb.add_option("--saved-with", request.saved_with,
                  "NxDT YAML of the training that saved a checkpoint of NxD, NxDT or NNM; none: "
                  "--config. Degrees are those of its files")
      ->type_name("YAML");
  verb.add_flag("--weights-only", request.weights_only, "no optimizer states");
  verb.add_flag("--json", request.json, "one JSON document");
}

/// As the configuration says, where options do not say the heads.
void convert_to_megatron(const ConvertRequest& request, const TensorSource& source,
                         const Place& place, checkpoint::ConvertOptions options,
                         const checkpoint::Progress& progress) {
  if (request.heads > 0)
    return checkpoint::write_megatron(source, place, options, {request.heads, request.kv_heads},
                                      progress);
  const trainer::ModelSection model =
      checkpoint::checked_config_of(source, request.native.config_file, request.native.overrides)
          .model;
  options.model = &model;
  checkpoint::write_megatron(source, place, options,
                             {model.num_attention_heads, model.num_kv_heads}, progress);
}

void convert_plain(const ConvertRequest& request) {
  Activity activity("opening the checkpoint");
  const auto source = checkpoint::open_checkpoint(request.native.source);
  checkpoint::ConvertOptions options{.weights_only = request.native.weights_only};
  if (!request.dtype.empty()) options.dtype = checkpoint::dtype_named(request.dtype);
  const Place place = checkpoint::open_place(request.native.destination);
  std::int64_t bytes = 0;
  const auto progress = [&](std::int64_t done, std::int64_t of) {
    activity.count(done, of);
    bytes = of;
  };
  activity.now("writing tensors, bytes");
  if (request.to == "full")
    checkpoint::write_full(*source, place, options, progress);
  else
    convert_to_megatron(request, *source, place, options, progress);
  if (request.native.json) {
    std::cout << nlohmann::json({{"schema", "trellis.checkpoint_convert/1"},
                                 {"checkpoint", place.address()},
                                 {"format", request.to},
                                 {"bytes", bytes}})
                     .dump(1)
              << "\n";
  } else {
    std::cout << fmt::format("{}: {} of tensors in the format {}\n", terminal_line(place.address()),
                             human_bytes(bytes), request.to);
  }
}

int convert(ConvertRequest& request) {
  request.native.for_nxd = request.to == "nxd";
  if (request.to == "native" || request.to == "nxd") return reshard(request.native);
  if (request.to == "hf")
    return export_hub({.checkpoint = request.native.source,
                       .out = request.native.destination,
                       .config_file = request.native.config_file,
                       .dtype = request.dtype,
                       .overrides = request.native.overrides,
                       .json = request.native.json});
  convert_plain(request);
  return 0;
}

}  // namespace

void add_checkpoint_reshard(CLI::App& checkpoint, int& exit_code) {
  CLI::App* verb = checkpoint.add_subcommand(
      "reshard", "writes a checkpoint in another layout, optimizer states too");
  auto request = std::make_shared<ReshardRequest>();
  verb->add_option("checkpoint", request->source, "of any format")->required();
  verb->add_option("overrides", request->overrides,
                   "key.path=value of the new layout, e.g. "
                   "distributed_strategy.tensor_model_parallel_size=4");
  verb->add_option("--instance", request->instance, "whose order copies of key/value heads have")
      ->capture_default_str();
  add_target(*verb, *request);
  verb->footer(
      "Examples:\n  trellis checkpoint reshard a.ckpt trainer.devices=4 "
      "distributed_strategy.tensor_model_parallel_size=4 --out b.ckpt\n"
      "  trellis checkpoint reshard a.ckpt --config other.yaml --out b.ckpt\n"
      "Training loads every layout by itself; this saves it the work at each start. Until it is "
      "complete the result is marked as unfinished, and the same command begins again.");
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->callback([request, accepted, &exit_code] {
    add_accepted(accepted, request->overrides);
    exit_code = reshard(*request);
  });
}

void add_checkpoint_import_hf(CLI::App& checkpoint, int& exit_code) {
  CLI::App* verb = checkpoint.add_subcommand(
      "import-hf", "writes a folder of Hugging Face as a checkpoint of the configuration's layout");
  auto request = std::make_shared<ReshardRequest>();
  request->source_format = "hugging_face";
  request->weights_only = true;
  verb->add_option("folder", request->source, "with config.json and weights")->required();
  verb->add_option("overrides", request->overrides, "key.path=value of the configuration");
  verb->add_option("--out", request->destination, "a new folder, local or s3://bucket/prefix")
      ->check(not_empty("a folder"))
      ->required();
  verb->add_option("--config", request->config_file, "NxDT YAML: model, layout and precision")
      ->type_name("YAML")
      ->required();
  const auto verify = std::make_shared<bool>(false);
  CLI::Option* json = verb->add_flag("--json", request->json, "one JSON document");
  verb->add_flag("--verify", *verify,
                 "then read the checkpoint back and compare every weight with the folder's: those "
                 "that differ most are shown, exit code 5")
      ->excludes(json);
  verb->footer(
      "Example:\n  trellis checkpoint import-hf Llama-3-8B --config llama.yaml --out llama.ckpt\n"
      "`train --init-from` takes the result, or the folder itself. Adapters of the configuration "
      "are "
      "not in it: the training makes them.");
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->callback([request, verify, accepted, &exit_code] {
    add_accepted(accepted, request->overrides);
    exit_code = import_checkpoint(*request, *verify);
  });
}

void add_checkpoint_convert(CLI::App& checkpoint, int& exit_code) {
  CLI::App* verb =
      checkpoint.add_subcommand("convert", "writes a checkpoint of any format in another one");
  auto request = std::make_shared<ConvertRequest>();
  verb->add_option("checkpoint", request->native.source, "of any format")->required();
  verb->add_option("overrides", request->native.overrides, "key.path=value of the configuration");
  verb->add_option("--to", request->to,
                   "full: one file of torch.save; megatron: a folder of "
                   "megatron.core.dist_checkpointing; hf: weights for transformers (export-hf has "
                   "more options); native: files per rank (as reshard); nxd: those that NxD's "
                   "load_checkpoint takes")
      ->check(CLI::IsMember({"full", "megatron", "hf", "native", "nxd"}))
      ->required();
  add_target(*verb, request->native);
  verb->add_option("--dtype", request->dtype, "of the weights; none: as they are")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  verb->add_option("--heads", request->heads,
                   "attention heads, which the fused weights of megatron need; none: the "
                   "configuration's")
      ->check(at_least(1));
  verb->add_option("--kv-heads", request->kv_heads, "key/value heads; none: as many")
      ->check(at_least(1))
      ->needs("--heads");
  verb->footer(
      "Examples:\n  trellis checkpoint convert a.ckpt --to full --out whole.pt\n"
      "  trellis checkpoint convert a.ckpt --to megatron --out iter_0000100\n"
      "  trellis checkpoint convert a.ckpt trainer.devices=64 "
      "distributed_strategy.expert_model_parallel_size=8 --to nxd --out nxd/step_100\n"
      "  trellis checkpoint convert iter_0000100 --to native --config llama.yaml --out b.ckpt");
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->callback([request, accepted, &exit_code] {
    add_accepted(accepted, request->native.overrides);
    exit_code = convert(*request);
  });
}

}  // namespace trellis::cli
