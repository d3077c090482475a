#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/number_text.h"
#include "cli/options/accept_option.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/comparison_text.h"
#include "cli/verbs/checkpoint_hub.h"
#include "cli/verbs/checkpoint_parts.h"
#include "cli/verbs/checkpoint_tokens.h"
#include "trainer/files/checkpoint/adapters/merged_source.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/conversion/saved_config.h"
#include "trainer/files/checkpoint/conversion/verify.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_folder.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_writer.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::cli {
namespace {

namespace hub = checkpoint::hugging_face;
using checkpoint::Comparison;
using checkpoint::DType;
using checkpoint::Place;
using checkpoint::TensorEntry;
using checkpoint::TensorSource;

/// The dtype that the weights have.
DType dtype_of(const TensorSource& source) {
  for (const TensorEntry& entry : source.tensors()) {
    if (checkpoint::parse_state_key(entry.key).state.empty()) return entry.dtype;
  }
  return DType::kFloat32;
}

/// A config.json for the configuration of the training.
void make_config(const TensorSource& source, const HubExportRequest& request,
                 hub::ExportOptions& options) {
  const trainer::RunConfig config =
      checkpoint::checked_config_of(source, request.config_file, request.overrides);
  const std::int64_t vocabulary =
      request.vocab_size > 0 ? request.vocab_size : config.model.vocab_size;
  options.config_text = hub::with_token_ids(
      hub::hub_config_text(config.model, vocabulary, options.dtype.value_or(dtype_of(source))),
      exported_tokens(request.tokenizer, config.data));
  options.config_place = request.config_file.empty() ? source.address() : request.config_file;
}

/// The files next to the weights: those of another folder as they are, or made from the
/// configuration.
hub::SideFiles side_files(const TensorSource& source, const HubExportRequest& request,
                          hub::ExportOptions& options) {
  hub::SideFiles files;
  if (request.like.empty()) {
    make_config(source, request, options);
    files[hub::kGenerationConfigFile] = hub::generation_config_text(options.config_text);
  } else {
    const Place like = checkpoint::open_place(request.like);
    options.config_place = like.address() + "/" + hub::kConfigFile;
    files = hub::files_next_to_weights(like);
    if (!request.max_shard_gb) options.files = hub::files_of_index(like);
    const auto config = files.find(hub::kConfigFile);
    if (config == files.end()) throw ConfigError(options.config_place + ": there is no such file");
    options.config_text = config->second;
    if (checkpoint::has_configuration(source))
      checkpoint::check_hub_config(options.config_text, options.config_place,
                                   checkpoint::config_of(source, "", request.overrides));
  }
  files[hub::kConfigFile] = options.config_text;
  if (!request.tokenizer.empty())
    files.merge(hub::tokenizer_files(checkpoint::open_place(request.tokenizer)));
  return files;
}

/// The checkpoint with its adapters in the weights, when there are some.
std::unique_ptr<TensorSource> merged(const TensorSource& source, const HubExportRequest& request) {
  const bool adapts = std::ranges::any_of(source.tensors(), [](const TensorEntry& entry) {
    return checkpoint::adapters::is_adapter_key(entry.key);
  });
  if (!adapts && !request.merge_adapters) return nullptr;
  if (!adapts) throw ConfigError(source.address() + ": it holds no adapters to be merged");
  if (!request.merge_adapters)
    throw ConfigError(source.address() +
                      ": it holds LoRA adapters: add --merge-adapters, which makes them part of "
                      "the weights, or write them alone with `trellis checkpoint export-adapter`");
  const trainer::RunConfig config =
      checkpoint::checked_config_of(source, request.config_file, request.overrides);
  if (!config.model.lora)
    throw ConfigError((request.config_file.empty() ? source.address() : request.config_file) +
                      ":model_alignment_strategy.peft: missing: expected that of the training, "
                      "which has the adapters' scale");
  return std::make_unique<checkpoint::adapters::MergedSource>(source, config.model.lora->scale());
}

void print_json(const hub::ExportPlan& plan, const Place& out,
                const std::optional<Comparison>& read_back) {
  nlohmann::json report{{"schema", "trellis.checkpoint_export/1"},
                        {"folder", out.address()},
                        {"bytes", plan.bytes},
                        {"parameters", plan.parameters},
                        {"files", plan.shards.size()}};
  if (read_back)
    report["verified"] = {{"tensors", read_back->tensors},
                          {"bytes", read_back->bytes},
                          {"different", read_back->differences.size()},
                          {"differences", differences_json(*read_back)}};
  std::cout << report.dump(1) << "\n";
}

void print_text(const hub::ExportPlan& plan, const Place& out,
                const std::optional<Comparison>& read_back) {
  std::cout << fmt::format("{}: {} parameters, {} in {} files of weights\n",
                           terminal_line(out.address()), plan.parameters, human_bytes(plan.bytes),
                           plan.shards.size());
  if (read_back) std::cout << read_back_text(*read_back, "the checkpoint");
}

}  // namespace

int export_hub(const HubExportRequest& request) {
  Activity activity("opening the checkpoint");
  const auto opened = checkpoint::open_checkpoint(request.checkpoint);
  const auto with_adapters = merged(*opened, request);
  const TensorSource& weights = with_adapters ? *with_adapters : *opened;
  hub::ExportOptions options;
  if (request.max_shard_gb)
    options.max_shard_bytes = static_cast<std::int64_t>(*request.max_shard_gb * 1e9);
  if (!request.dtype.empty()) options.dtype = checkpoint::dtype_named(request.dtype);
  const hub::SideFiles files = side_files(*opened, request, options);
  const hub::ExportPlan plan = hub::plan_export(weights, options);
  const Place out = checkpoint::open_place(request.out);
  activity.now("writing weights, bytes");
  hub::write_export(weights, plan, files, out,
                    [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  std::optional<Comparison> read_back;
  if (request.verify) {
    activity.now("reading the weights back, tensors");
    read_back = checkpoint::verify_export(
        weights, plan, files, out,
        [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  }
  request.json ? print_json(plan, out, read_back) : print_text(plan, out, read_back);
  const bool is_equal = !read_back || read_back->differences.empty();
  return static_cast<int>(is_equal ? ExitCode::kOk : ExitCode::kParity);
}

void add_checkpoint_export_hf(CLI::App& checkpoint, int& exit_code) {
  CLI::App* verb = checkpoint.add_subcommand(
      "export-hf", "writes the weights of any checkpoint as a folder that transformers loads");
  auto request = std::make_shared<HubExportRequest>();
  verb->add_option("checkpoint", request->checkpoint, "of any format")->required();
  verb->add_option("--out", request->out, "a new folder, local or s3://bucket/prefix")
      ->check(not_empty("a folder"))
      ->required();
  verb->add_option("--like", request->like,
                   "a folder of Hugging Face: config.json, generation_config.json and the "
                   "tokenizer's files are taken from it as they are")
      ->type_name("FOLDER");
  verb->add_option("--tokenizer", request->tokenizer, "a folder with the tokenizer's files")
      ->type_name("FOLDER");
  verb->add_option("--config", request->config_file,
                   "NxDT YAML that config.json is made from, in place of the one that the "
                   "checkpoint was saved with")
      ->type_name("YAML")
      ->excludes("--like");
  verb->add_option("--set", request->overrides, "key.path=value of that configuration")
      ->type_name("KEY=VALUE")
      ->excludes("--like");
  verb->add_option("--vocab-size", request->vocab_size,
                   "tokens of the vocabulary: rows that pad it are cut")
      ->check(at_least(1))
      ->excludes("--like");
  verb->add_option("--dtype", request->dtype, "of all weights; none: as they are")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  verb->add_option("--max-shard-size", request->max_shard_gb,
                   "GB of a file of weights; a larger tensor has its own file; none: the files of "
                   "--like's index, or 5")
      ->check(above_zero());
  verb->add_flag("--merge-adapters", request->merge_adapters,
                 "W + scale · B · A in place of each weight that LoRA adapters belong to");
  verb->add_flag("--verify", request->verify,
                 "then read the folder back and compare every byte of every tensor with the "
                 "checkpoint: those that differ most are shown, exit code 5");
  verb->add_flag("--json", request->json, "one JSON document");
  verb->footer(
      "Examples:\n  trellis checkpoint export-hf run/checkpoints/a.ckpt --out llama-hf\n"
      "  trellis checkpoint export-hf run/checkpoints/a.ckpt --out llama-hf --like Llama-3-8B "
      "--dtype bfloat16 --verify\n"
      "An export that was interrupted goes on after the files that it finished.");
  const AcceptedKeys accepted = add_accept_option(*verb);
  verb->callback([request, accepted, &exit_code] {
    add_accepted(accepted, request->overrides);
    exit_code = export_hub(*request);
  });
}

}  // namespace trellis::cli
