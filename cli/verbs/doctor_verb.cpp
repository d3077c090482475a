#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <system_error>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/cache_directory.h"
#include "base/files/shared_files.h"
#include "base/number_text.h"
#include "base/process/host_memory.h"
#include "cli/launch/load_trainer.h"
#include "cli/verbs/verbs.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "traces/report/validity.h"
#include "trainer/files/data/chat/template_child.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;

enum class Health : std::uint8_t { kOk, kWarning, kMissing };

/// One thing that the program needs: what was found, and what to do when it is not enough.
struct Diagnosis {
  std::string subject;
  Health health = Health::kOk;
  std::string found;
  std::string advice;  ///< "": nothing to do
};

const char* health_name(Health health) {
  constexpr std::array<const char*, 3> kHealthNames{"ok", "warning", "missing"};
  return kHealthNames[static_cast<std::size_t>(health)];
}

/// A library that verbs load at run time, with all that it needs itself.
Diagnosis library(const std::string& file, const std::string& needed_by) {
  const fs::path path = installed_library(file);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {file, Health::kMissing, dlerror(),
            "needed by " + needed_by +
                ": install trellis-neuron again (it brings torch and pyarrow), or build the tree "
                "with scripts/quickstart"};
  }
  return {file, Health::kOk, path.string(), ""};
}

/// Where a library that is loaded already came from; `part` is in its file name.
Diagnosis loaded_library(const std::string& part) {
  struct Search {
    const std::string& part;
    std::string found;
  } search{part, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* context) {
        auto* s = static_cast<Search*>(context);
        const std::string name = fs::path(info->dlpi_name).filename();
        if (name.starts_with(s->part)) s->found = info->dlpi_name;
        return s->found.empty() ? 0 : 1;
      },
      &search);
  if (search.found.empty())
    return {part, Health::kMissing, "not loaded", "pip install torch==" TRELLIS_TORCH_VERSION};
  return {part, Health::kOk, fs::weakly_canonical(search.found).string(), ""};
}

Diagnosis hardware() {
  try {
    return {"hardware descriptions", Health::kOk,
            fmt::format("{} instances in {}", sim::instance_names().size(),
                        sim::config_directory().string()),
            ""};
  } catch (const Error& error) {
    return {"hardware descriptions", Health::kMissing, error.what(),
            "install the program again, or set TRELLIS_CONFIG_DIR"};
  }
}

Diagnosis published() {
  const fs::path folder = analysis::published_directory();
  if (!folder.empty() && fs::is_regular_file(folder / "validated.yaml"))
    return {"published measurements", Health::kOk, folder.string(), ""};
  return {"published measurements", Health::kWarning, "no validated.yaml",
          "predictions are printed without their error ranges: install the program again, or set "
          "TRELLIS_PUBLISHED_DIR"};
}

Diagnosis cache() {
  const std::optional<fs::path> folder = cache_directory();
  if (!folder) {
    return {"cache", Health::kWarning, "off",
            "every run times all its programs again: set TRELLIS_CACHE to a folder"};
  }
  fs::path there = *folder;
  while (!there.empty() && !fs::exists(there)) there = there.parent_path();
  if (access(there.c_str(), W_OK) != 0) {
    return {"cache", Health::kWarning, folder->string() + " cannot be written",
            "set TRELLIS_CACHE to a folder that can"};
  }
  std::error_code ignored;
  const auto space = fs::space(there, ignored);
  const auto free_mib = static_cast<std::int64_t>(space.available >> 20);
  Diagnosis found{"cache", Health::kOk, fmt::format("{}, {} MiB free", folder->string(), free_mib),
                  ""};
  if (free_mib < 512) {
    found.health = Health::kWarning;
    found.advice = "free at least 512 MiB, or set TRELLIS_CACHE to another disk";
  }
  return found;
}

Diagnosis memory() {
  const HostMemory host = available_host_memory();
  Diagnosis found{"host memory", Health::kOk,
                  fmt::format("{} available ({})", human_bytes(host.available_bytes), host.limit),
                  ""};
  if (host.available_bytes < (std::int64_t{2} << 30)) {
    found.health = Health::kWarning;
    found.advice = "the quickstart needs about 2 GiB; `trellis simulate` needs the least";
  }
  return found;
}

Diagnosis processors() {
  return {"host cores", Health::kOk, std::to_string(std::thread::hardware_concurrency()), ""};
}

Diagnosis graphviz() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((fs::path(folder) / "dot").c_str(), X_OK) == 0)
      return {"Graphviz", Health::kOk, (fs::path(folder) / "dot").string(), ""};
  }
  return {"Graphviz", Health::kWarning, "no `dot` in PATH",
          "only --topology FILE.svg needs it: install graphviz, or write FILE.dot"};
}

Diagnosis chat_templates() {
  const std::string why = trainer::why_no_templates();
  if (why.empty()) return {"chat templates", Health::kOk, trainer::find_python(), ""};
  return {"chat templates", Health::kWarning, why,
          "only fine-tuning on chats needs it: pip install jinja2, or name a Python 3 that has it "
          "in TRELLIS_PYTHON"};
}

std::vector<Diagnosis> examine() {
  std::vector<Diagnosis> all{
      library("libtrellis_trainer.so", "train, simulate, verify, memory"),
      library("libtrellis_neuron.so", "every emulated run"),
      library("libtrellis_torch_device.so", "train on a device of LibTorch"),
      library("libtrellis_parquet.so", "sweep --parquet, report --metrics"),
      library("libtrellis_s3.so", "checkpoints at s3://"),
      loaded_library("libtorch_cpu"),
      loaded_library("libarrow"),
      chat_templates(),
      hardware(),
      published(),
      cache(),
      memory(),
      processors(),
      graphviz(),
  };
  return all;
}

nlohmann::json to_json(const std::vector<Diagnosis>& all) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Diagnosis& each : all) {
    checks.push_back({{"subject", each.subject},
                      {"status", health_name(each.health)},
                      {"found", each.found},
                      {"advice", each.advice}});
  }
  return {{"schema", "trellis.doctor/1"}, {"version", version_text()}, {"checks", checks}};
}

void print(const std::vector<Diagnosis>& all) {
  std::cout << version_text() << "\n\n";
  for (const Diagnosis& each : all) {
    std::cout << fmt::format("{:<8} {:<24} {}\n", health_name(each.health), each.subject,
                             each.found);
    if (!each.advice.empty()) std::cout << fmt::format("{:34}→ {}\n", "", each.advice);
  }
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what this installation needs, what was found, and what to do about the rest");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "one JSON document (schema trellis.doctor/1)");
  verb->footer(
      "Exit codes: 0 all needed parts are there (warnings are allowed), 2 one is missing.");
  verb->callback([json, &exit_code] {
    const std::vector<Diagnosis> all = examine();
    if (*json) {
      std::cout << to_json(all).dump(1) << "\n";
    } else {
      print(all);
    }
    const bool missing = std::ranges::any_of(
        all, [](const Diagnosis& each) { return each.health == Health::kMissing; });
    exit_code = static_cast<int>(missing ? ExitCode::kConfig : ExitCode::kOk);
  });
}

}  // namespace trellis::cli
