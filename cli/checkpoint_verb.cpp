#include <iostream>
#include <map>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/report/run_report.h"
#include "analysis/report/text_table.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/checkpoint_parts.h"
#include "cli/checkpoint_source.h"
#include "cli/verbs.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/manifest.h"
#include "trainer/checkpoint/formats/native/native_source.h"
#include "trainer/checkpoint/lifecycle/checkpoint_folder.h"

namespace trellis::cli {
namespace {

using analysis::TextTable;
using checkpoint::TensorEntry;
using checkpoint::TensorSource;
using checkpoint::native::Manifest;
using checkpoint::native::NativeSource;
using checkpoint::native::read_manifest;
using checkpoint::native::StoredFile;
using checkpoint::native::StoredTensor;
using nlohmann::json;
using Align = TextTable::Align;

struct CheckpointOptions {
  std::string address, config_file;
  bool json = false;
};

/// Other programs' files have no sizes in the manifest: that of the tensors.
std::int64_t total_bytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  if (manifest.files.empty()) {
    for (const StoredTensor& tensor : manifest.tensors) bytes += tensor.bytes();
  }
  for (const auto& [path, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

std::size_t file_count(const Manifest& manifest) {
  if (!manifest.files.empty()) return manifest.files.size();
  std::set<std::string> files;
  for (const StoredTensor& tensor : manifest.tensors) files.insert(tensor.file);
  return files.size();
}

std::string layout_text(const Manifest& manifest) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : manifest.layout)
    parts.push_back(fmt::format("{} {}", name, value));
  return fmt::format("{}", fmt::join(parts, ", "));
}

json summary(const std::string& tag, const Manifest& manifest) {
  return {{"tag", tag},
          {"step", manifest.step},
          {"consumed_samples", manifest.consumed_samples},
          {"metric", manifest.metric ? json(*manifest.metric) : json()},
          {"bytes", total_bytes(manifest)},
          {"layout", manifest.layout}};
}

void list_checkpoints(const CheckpointOptions& options) {
  const auto storage = checkpoint::open_storage(options.address);
  const checkpoint::CheckpointFolder folder(storage);
  json rows = json::array();
  TextTable table({{"checkpoint", Align::kLeft},
                   {"step"},
                   {"samples"},
                   {"metric"},
                   {"size"},
                   {"layout", Align::kLeft}});
  for (const checkpoint::KeptCheckpoint& kept : folder.complete()) {
    const Manifest manifest = read_manifest(*storage, kept.tag);
    rows.push_back(summary(kept.tag, manifest));
    table.add({terminal_line(kept.tag), std::to_string(manifest.step),
               std::to_string(manifest.consumed_samples),
               manifest.metric ? analysis::significant(*manifest.metric) : "-",
               analysis::human_bytes(total_bytes(manifest)), layout_text(manifest)});
  }
  if (options.json) {
    std::cout << json({{"schema", "trellis.checkpoints/1"}, {"checkpoints", rows}}).dump(1) << "\n";
  } else if (table.empty()) {
    std::cout << terminal_line(options.address) << " holds no complete checkpoint\n";
  } else {
    std::cout << table.text();
  }
}

/// In how many places of files the parts of each tensor are.
std::map<std::string, std::int64_t> part_counts(const Manifest& manifest) {
  std::map<std::string, std::int64_t> counts;
  for (const StoredTensor& stored : manifest.tensors) {
    for (const checkpoint::native::StoredPart& part : stored.parts) ++counts[part.key];
  }
  return counts;
}

json contents(const CheckpointOptions& options, const TensorSource& source,
              const NativeSource* native) {
  json report{{"tag", options.address}};
  if (native != nullptr) {
    report = summary(options.address, native->manifest());
    for (const auto& [path, file] : native->manifest().files)
      report["files"].push_back(
          {{"path", path}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
  }
  report["schema"] = "trellis.checkpoint_contents/1";
  report["format"] = source.format();
  const auto counts =
      native != nullptr ? part_counts(native->manifest()) : std::map<std::string, std::int64_t>{};
  for (const TensorEntry& entry : source.tensors()) {
    json row{{"key", entry.key}, {"dtype", checkpoint::name(entry.dtype)}, {"shape", entry.shape}};
    if (native != nullptr) row["parts"] = counts.at(entry.key);
    report["tensors"].push_back(std::move(row));
  }
  return report;
}

std::string head_line(const TensorSource& source, const NativeSource* native) {
  if (native != nullptr) {
    const Manifest& manifest = native->manifest();
    const std::string head = native->is_ours() ? "" : fmt::format("format {}: ", source.format());
    return fmt::format("{}step {}, {} samples, {} in {} files{}{}", head, manifest.step,
                       manifest.consumed_samples, analysis::human_bytes(total_bytes(manifest)),
                       file_count(manifest), manifest.layout.empty() ? "" : "; ",
                       layout_text(manifest));
  }
  std::int64_t bytes = 0;
  for (const TensorEntry& entry : source.tensors())
    bytes += checkpoint::elements_of(entry.shape) * checkpoint::element_bytes(entry.dtype);
  return fmt::format("format {}: {} in {} tensors", source.format(), analysis::human_bytes(bytes),
                     source.tensors().size());
}

int inspect_checkpoint(const CheckpointOptions& options) {
  CheckpointReader reader(options.config_file);
  const auto source = reader.open(options.address);
  if (!source) return reader.exit_code();
  reader.check_config_is_used();
  const auto* native = dynamic_cast<const NativeSource*>(source.get());
  if (options.json) {
    std::cout << contents(options, *source, native).dump(1) << "\n";
    return 0;
  }
  std::cout << head_line(*source, native) << "\n\n";
  std::vector<TextTable::Column> columns{
      {"tensor", Align::kLeft}, {"type", Align::kLeft}, {"shape", Align::kLeft}};
  if (native != nullptr) columns.push_back({"parts"});
  TextTable table(columns);
  const auto counts =
      native != nullptr ? part_counts(native->manifest()) : std::map<std::string, std::int64_t>{};
  for (const TensorEntry& entry : source->tensors()) {
    std::vector<std::string> row{terminal_line(entry.key), checkpoint::name(entry.dtype),
                                 checkpoint::text_of(entry.shape)};
    if (native != nullptr) row.push_back(std::to_string(counts.at(entry.key)));
    table.add(row);
  }
  std::cout << table.text();
  return 0;
}

/// "" when the file is what was saved.
std::string damage(checkpoint::Storage& storage, const std::string& path,
                   const StoredFile& expected) {
  if (!storage.exists(path)) return "is missing";
  const StoredFile got = checkpoint::native::hash_file(*storage.open(path));
  if (got.bytes != expected.bytes)
    return fmt::format("expected {} bytes, got {}", expected.bytes, got.bytes);
  if (got.xxh3_128 != expected.xxh3_128)
    return fmt::format("expected the checksum {}, got {}", expected.xxh3_128, got.xxh3_128);
  return "";
}

/// Of a checkpoint whose save may have been interrupted.
Manifest saved_manifest(checkpoint::Storage& storage) {
  const char* const file = checkpoint::native::kManifestFile;
  if (!storage.exists(file)) return read_manifest(storage, "");  // which says what is wrong
  return Manifest::from_json(storage.read_text(file), storage.address() + "/" + file);
}

int verify_checkpoint(const CheckpointOptions& options) {
  const auto storage = checkpoint::open_storage(options.address);
  const Manifest manifest = saved_manifest(*storage);
  Activity activity("reading files of the checkpoint");
  json damaged = json::array();
  std::int64_t done = 0;
  for (const auto& [path, file] : manifest.files) {
    if (const std::string what = damage(*storage, path, file); !what.empty())
      damaged.push_back({{"path", path}, {"problem", what}});
    activity.count(++done, static_cast<std::int64_t>(manifest.files.size()));
  }
  if (!storage->exists(checkpoint::native::kDoneFile))
    damaged.push_back(
        {{"path", checkpoint::native::kDoneFile}, {"problem", "is missing: the save did not end"}});
  if (options.json) {
    std::cout << json({{"schema", "trellis.checkpoint_check/1"},
                       {"files", manifest.files.size()},
                       {"damaged", damaged}})
                     .dump(1)
              << "\n";
  } else {
    for (const json& each : damaged)
      std::cout << terminal_line(each["path"].get<std::string>()) << ": "
                << each["problem"].get<std::string>() << "\n";
    std::cout << fmt::format("{} files, {}: {} damaged\n", manifest.files.size(),
                             analysis::human_bytes(total_bytes(manifest)), damaged.size());
  }
  return static_cast<int>(damaged.empty() ? ExitCode::kOk : ExitCode::kConfig);
}

void add_part(CLI::App& verb, const std::string& name, const std::string& what,
              const std::string& argument, const std::function<void(const CheckpointOptions&)>& run,
              bool takes_config = false) {
  CLI::App* part = verb.add_subcommand(name, what);
  auto options = std::make_shared<CheckpointOptions>();
  part->add_option(argument, options->address, "a local folder, or s3://bucket/prefix")->required();
  part->add_flag("--json", options->json, "one JSON document");
  if (takes_config)
    part->add_option(
            "--config", options->config_file,
            "NxDT YAML of the training that saved a folder of NxD, NxDT or NNM: its weights "
            "are shown; none: the tensors of its files, by rank")
        ->type_name("YAML");
  part->callback([options, run] { run(*options); });
}

}  // namespace

void add_checkpoint(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "checkpoint", "lists, shows, checks, compares and writes checkpoints of every format");
  verb->require_subcommand(1);
  add_part(*verb, "list", "the complete checkpoints of a folder, the oldest first", "folder",
           [&exit_code](const CheckpointOptions& options) {
             list_checkpoints(options);
             exit_code = 0;
           });
  add_part(
      *verb, "inspect", "one checkpoint of any format: step, layout, every tensor", "checkpoint",
      [&exit_code](const CheckpointOptions& options) { exit_code = inspect_checkpoint(options); },
      /*takes_config=*/true);
  add_part(
      *verb, "verify", "reads every file and compares it with what was saved", "checkpoint",
      [&exit_code](const CheckpointOptions& options) { exit_code = verify_checkpoint(options); });
  add_checkpoint_diff(*verb, exit_code);
  add_checkpoint_export_hf(*verb, exit_code);
  add_checkpoint_export_adapter(*verb, exit_code);
  add_checkpoint_import_hf(*verb, exit_code);
  add_checkpoint_reshard(*verb, exit_code);
  add_checkpoint_convert(*verb, exit_code);
  verb->footer(
      "Examples:\n  trellis checkpoint list run/checkpoints\n  trellis checkpoint verify "
      "run/checkpoints/<name>.ckpt\n"
      "Exit codes: 0 all is there, 2 a file is missing or is not what was saved.");
}

}  // namespace trellis::cli
