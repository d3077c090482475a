#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number_text.h"
#include "cli/verbs/checkpoint_parts.h"
#include "cli/verbs/checkpoint_source.h"
#include "cli/verbs/verbs.h"
#include "traces/report/text_table.h"
#include "trainer/files/checkpoint/conversion/check_files.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::cli {
namespace {

using analysis::TextTable;
using checkpoint::TensorEntry;
using checkpoint::TensorSource;
using checkpoint::native::Manifest;
using checkpoint::native::NativeSource;
using checkpoint::native::read_manifest;
using checkpoint::native::StoredTensor;
using nlohmann::json;
using Align = TextTable::Align;

struct CheckpointOptions {
  std::string address, config_file;
  bool json = false;
  bool write_manifest = false;
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
               human_bytes(total_bytes(manifest)), layout_text(manifest)});
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
                       manifest.consumed_samples, human_bytes(total_bytes(manifest)),
                       file_count(manifest), manifest.layout.empty() ? "" : "; ",
                       layout_text(manifest));
  }
  std::int64_t bytes = 0;
  for (const TensorEntry& entry : source.tensors())
    bytes += checkpoint::elements_of(entry.shape) * checkpoint::element_bytes(entry.dtype);
  return fmt::format("format {}: {} in {} tensors", source.format(), human_bytes(bytes),
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

std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i)
    text += (i == 0 ? "" : ", ") + terminal_line(names[i]);
  return names.size() > kMost ? text + ", …" : text;
}

json report_of(const checkpoint::FileCheck& check) {
  json damaged = json::array();
  for (const auto& [path, problem] : check.damaged)
    damaged.push_back({{"path", path}, {"problem", problem}});
  return {{"schema", "trellis.checkpoint_check/1"},
          {"files", check.files},
          {"bytes", check.bytes},
          {"damaged", damaged},
          {"without_checksums", check.unseen}};
}

void print_check(const checkpoint::FileCheck& check) {
  for (const auto& [path, problem] : check.damaged)
    std::cout << (path.empty() ? "" : terminal_line(path) + ": ") << terminal_line(problem) << "\n";
  if (!check.unseen.empty())
    std::cout << fmt::format(
        "{} files have no checksums, so damage in them cannot be seen: {}; --write-manifest writes "
        "some\n",
        check.unseen.size(), names_text(check.unseen));
  std::cout << fmt::format("{} files, {}: {} damaged\n", check.files, human_bytes(check.bytes),
                           check.damaged.size());
}

int verify_checkpoint(const CheckpointOptions& options) {
  const checkpoint::Place place = checkpoint::open_place(options.address);
  Activity activity("reading files of the checkpoint");
  const checkpoint::FileCheck check = checkpoint::check_files(
      place, [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  activity.now("");
  options.json ? static_cast<void>(std::cout << report_of(check).dump(1) << "\n")
               : print_check(check);
  if (!check.damaged.empty()) return static_cast<int>(ExitCode::kConfig);
  if (!options.write_manifest) return static_cast<int>(ExitCode::kOk);
  if (check.is_ours && check.unseen.empty()) {
    log_info("--write-manifest: every file has a hash in manifest.json; nothing is written");
  } else {
    checkpoint::write_checksums(place);
    log_info(checkpoint::join_path(place.address(), checkpoint::native::kChecksumsFile) +
             ": hashes of all files, which every later load compares");
  }
  return static_cast<int>(ExitCode::kOk);
}

/// Additional options of a part of the verb besides the checkpoint and --json.
enum class More { kNothing, kConfig, kWriteManifest };

void add_part(CLI::App& verb, const std::string& name, const std::string& what,
              const std::string& argument, const std::function<void(const CheckpointOptions&)>& run,
              More more = More::kNothing) {
  CLI::App* part = verb.add_subcommand(name, what);
  auto options = std::make_shared<CheckpointOptions>();
  part->add_option(argument, options->address, "a local folder, or s3://bucket/prefix")->required();
  part->add_flag("--json", options->json, "one JSON document");
  if (more == More::kWriteManifest)
    part->add_flag("--write-manifest", options->write_manifest,
                   "when nothing is damaged, hashes of all files go into trellis_manifest.json: "
                   "every later load and `verify` compares them");
  if (more == More::kConfig)
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
      More::kConfig);
  add_part(
      *verb, "verify",
      "reads every file of a checkpoint of any format and compares it with what was saved",
      "checkpoint",
      [&exit_code](const CheckpointOptions& options) { exit_code = verify_checkpoint(options); },
      More::kWriteManifest);
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
