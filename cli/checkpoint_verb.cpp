#include <iostream>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/report/run_report.h"
#include "analysis/report/text_table.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/verbs.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/manifest.h"
#include "trainer/checkpoint/lifecycle/checkpoint_folder.h"

namespace trellis::cli {
namespace {

using analysis::TextTable;
using checkpoint::native::Manifest;
using checkpoint::native::StoredFile;
using checkpoint::native::StoredTensor;
using nlohmann::json;
using Align = TextTable::Align;

struct CheckpointOptions {
  std::string address;
  bool json = false;
};

Manifest read_manifest(checkpoint::Storage& storage, const std::string& tag) {
  const std::string path = checkpoint::join_path(tag, checkpoint::native::kManifestFile);
  if (!storage.exists(path)) {
    throw ConfigError(storage.address() + "/" + path +
                      ": there is no such file; expected the folder of one checkpoint that "
                      "`trellis train` wrote (`trellis checkpoint list` shows them)");
  }
  return Manifest::from_json(storage.read_text(path), storage.address() + "/" + path);
}

std::int64_t total_bytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const auto& [path, file] : manifest.files) bytes += file.bytes;
  return bytes;
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

/// A tensor of the model or of an optimizer state, whatever files its parts are in.
struct WholeTensor {
  checkpoint::DType dtype = checkpoint::DType::kFloat32;
  checkpoint::Shape shape;
  std::int64_t parts = 0;
};

std::map<std::string, WholeTensor> whole_tensors(const Manifest& manifest) {
  std::map<std::string, WholeTensor> all;
  for (const StoredTensor& stored : manifest.tensors) {
    for (const checkpoint::native::StoredPart& part : stored.parts) {
      WholeTensor& whole = all[part.key];
      whole.dtype = stored.dtype;
      whole.shape = part.global_shape;
      ++whole.parts;
    }
  }
  return all;
}

void inspect_checkpoint(const CheckpointOptions& options) {
  const auto storage = checkpoint::open_storage(options.address);
  const Manifest manifest = read_manifest(*storage, "");
  const std::map<std::string, WholeTensor> tensors = whole_tensors(manifest);
  if (options.json) {
    json report = summary(options.address, manifest);
    report["schema"] = "trellis.checkpoint_contents/1";
    for (const auto& [path, file] : manifest.files)
      report["files"].push_back(
          {{"path", path}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
    for (const auto& [key, whole] : tensors) {
      report["tensors"].push_back({{"key", key},
                                   {"dtype", checkpoint::name(whole.dtype)},
                                   {"shape", whole.shape},
                                   {"parts", whole.parts}});
    }
    std::cout << report.dump(1) << "\n";
    return;
  }
  std::cout << fmt::format("step {}, {} samples, {} in {} files; {}\n\n", manifest.step,
                           manifest.consumed_samples, analysis::human_bytes(total_bytes(manifest)),
                           manifest.files.size(), layout_text(manifest));
  TextTable table(
      {{"tensor", Align::kLeft}, {"type", Align::kLeft}, {"shape", Align::kLeft}, {"parts"}});
  for (const auto& [key, whole] : tensors) {
    table.add({terminal_line(key), std::string(checkpoint::name(whole.dtype)),
               checkpoint::text_of(whole.shape), std::to_string(whole.parts)});
  }
  std::cout << table.text();
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

int verify_checkpoint(const CheckpointOptions& options) {
  const auto storage = checkpoint::open_storage(options.address);
  const Manifest manifest = read_manifest(*storage, "");
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
              const std::string& argument,
              const std::function<void(const CheckpointOptions&)>& run) {
  CLI::App* part = verb.add_subcommand(name, what);
  auto options = std::make_shared<CheckpointOptions>();
  part->add_option(argument, options->address, "a local folder, or s3://bucket/prefix")->required();
  part->add_flag("--json", options->json, "one JSON document");
  part->callback([options, run] { run(*options); });
}

}  // namespace

void add_checkpoint(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "checkpoint", "what `trellis train` saved: lists it, shows what is in it, checks every byte");
  verb->require_subcommand(1);
  add_part(*verb, "list", "the complete checkpoints of a folder, the oldest first", "folder",
           [&exit_code](const CheckpointOptions& options) {
             list_checkpoints(options);
             exit_code = 0;
           });
  add_part(*verb, "inspect", "one checkpoint: step, layout, every tensor", "checkpoint",
           [&exit_code](const CheckpointOptions& options) {
             inspect_checkpoint(options);
             exit_code = 0;
           });
  add_part(
      *verb, "verify", "reads every file and compares it with what was saved", "checkpoint",
      [&exit_code](const CheckpointOptions& options) { exit_code = verify_checkpoint(options); });
  verb->footer(
      "Examples:\n  trellis checkpoint list run/checkpoints\n  trellis checkpoint verify "
      "run/checkpoints/<name>.ckpt\n"
      "Exit codes: 0 all is there, 2 a file is missing or is not what was saved.");
}

}  // namespace trellis::cli
