#include "cli/kept_runs.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"
#include "trainer/report/validity.h"

extern char** environ;

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSchema = "trellis.kept_run/1";
constexpr const char* kManifest = "kept.json";
constexpr std::uintmax_t kMostBytes = 64 << 20;
constexpr std::size_t kMostRuns = 64;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Written anew for each run.
bool is_of_the_call(const std::string& name) { return name == "hparams.yaml" || name == "cmd-args.log" || name == kManifest; }

/// Of equal runs at different places the same.
constexpr const char* kPlaces[] = {"exp_manager.explicit_log_dir=null", "exp_manager.exp_dir=null", "exp_manager.name=null", "exp_manager.version=null"};

void add_environment(ContentHasher& hasher) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto begins = [&text](const char* prefix) { return text.starts_with(prefix); };
    const bool ours = begins("TRELLIS_") || begins("NEURON_") || begins("ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB=") || begins("ALLREDUCE_BUCKET_CAP_MB=");
    if (ours && !begins("TRELLIS_CACHE=")) variables.push_back(text);
  }
  std::sort(variables.begin(), variables.end());
  for (const std::string& variable : variables) hasher.text(variable);
}

/// A file that was built again has another size or time.
bool add_binary(ContentHasher& hasher, const fs::path& binary) {
  std::error_code absent;
  hasher.text(binary.filename().string());
  hasher.value(fs::file_size(binary, absent));
  if (absent) return false;
  hasher.value(fs::last_write_time(binary).time_since_epoch().count());
  return true;
}

void add_machine(ContentHasher& hasher, const RunSources& sources, const trainer::RunConfig& config) {
  sim::LoadOptions load;
  load.nodes = sources.nodes;
  load.logical_core_size = config.trainer.lnc;
  load.calibrated = sources.calibrated;
  load.overrides = sources.hardware;
  const sim::SystemConfig system = sim::load_system(sources.instance, load);
  hasher.text(sources.instance);
  hasher.value(sources.nodes);
  hasher.value(system.instance.logical_core_size);
  for (const sim::Parameter& parameter : system.parameters) {
    hasher.text(parameter.key);
    hasher.text(parameter.value);
  }
  for (const std::string& number : sources.hardware) hasher.text(number);
  hasher.value(sources.calibrated);
  hasher.text(config.software);
}

/// Names and sizes of the files of a run; none when it is too large, or has a folder in it.
std::optional<json> manifest_of(const fs::path& run) {
  json files = json::object();
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (is_of_the_call(name) || entry.is_directory()) continue;  // folders: outputs of earlier runs at the same place
    files[name] = entry.file_size();
    bytes += entry.file_size();
  }
  if (bytes > kMostBytes) return std::nullopt;
  return json{{"schema", kSchema}, {"files", files}};
}

bool is_whole(const fs::path& kept, const json& manifest) {
  if (!manifest.is_object() || manifest.value("schema", "") != kSchema || !manifest.contains("files") || !manifest["files"].is_object() || !manifest["files"].contains("report.json")) return false;
  for (const auto& [name, size] : manifest["files"].items()) {
    std::error_code absent;
    if (!size.is_number_unsigned() || fs::file_size(kept / name, absent) != size.get<std::uintmax_t>() || absent) return false;
  }
  return true;
}

/// The oldest go when there are too many.
void make_room(const fs::path& directory) {
  std::vector<std::pair<fs::file_time_type, fs::path>> runs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) runs.emplace_back(entry.last_write_time(ignored), entry.path());
  if (runs.size() <= kMostRuns) return;
  std::sort(runs.begin(), runs.end());
  for (std::size_t i = 0; i + kMostRuns < runs.size(); ++i) fs::remove_all(runs[i].second, ignored);
}

}  // namespace

std::vector<fs::path> program_binaries() {
  const fs::path self = fs::canonical("/proc/self/exe"), libraries = self.parent_path().parent_path() / "lib";
  const char* chosen = std::getenv("TRELLIS_DEVICE_PLUGIN");
  return {self, libraries / "libtrellis_trainer.so", chosen != nullptr && *chosen != '\0' ? fs::path(chosen) : libraries / "libtrellis_neuron.so"};
}

std::optional<ContentHash> run_key(const RunSources& sources) {
  std::vector<std::string> overrides = sources.overrides;
  overrides.insert(overrides.end(), std::begin(kPlaces), std::end(kPlaces));
  ContentHasher hasher;
  try {
    const trainer::RunCheck check = trainer::check_run_config(sources.config_file, overrides);
    // Files that are copied into the run's folder are of the call, not of the run.
    if (!check.problems.empty() || !check.config.exp_manager.files_to_copy.empty()) return std::nullopt;
    add_machine(hasher, sources, check.config);
    hasher.text(check.config.resolved_yaml);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  for (const fs::path& binary : sources.binaries) {
    if (!add_binary(hasher, binary)) return std::nullopt;
  }
  for (const std::string& option : sources.options) hasher.text(option);
  for (const fs::path& file : sources.files) hasher.text(read_text(file));
  hasher.text(read_text(trainer::published_directory() / "validated.yaml"));
  add_environment(hasher);
  return hasher.finish();
}

KeptRuns::KeptRuns(std::optional<fs::path> directory) {
  if (directory) directory_ = *directory / "runs";
}

bool KeptRuns::has(const ContentHash& key) const { return directory_ && fs::exists(*directory_ / key.to_string() / kManifest); }

bool KeptRuns::restore(const ContentHash& key, const fs::path& run) const {
  if (!has(key)) return false;
  const fs::path kept = *directory_ / key.to_string();
  const json manifest = json::parse(read_text(kept / kManifest), nullptr, /*allow_exceptions=*/false);
  std::error_code failed;
  if (is_whole(kept, manifest)) {
    for (const auto& [name, size] : manifest["files"].items()) {
      if (!failed) fs::copy_file(kept / name, run / name, fs::copy_options::overwrite_existing, failed);
    }
    if (!failed) return true;
  }
  log_warning(fmt::format("{}: a damaged result is left out and made again", kept.string()));
  fs::remove_all(kept, failed);
  return false;
}

void KeptRuns::store(const ContentHash& key, const fs::path& run) const {
  if (!directory_) return;
  const fs::path kept = *directory_ / key.to_string();
  const fs::path partial = kept.string() + fmt::format(".{}.partial", ::getpid());
  std::error_code ignored;
  try {
    const std::optional<json> manifest = manifest_of(run);
    if (!manifest) return;
    fs::create_directories(partial);
    for (const auto& [name, size] : manifest->at("files").items()) fs::copy_file(run / name, partial / name);
    write_file_atomically(partial / kManifest, manifest->dump(1) + "\n");
    fs::remove_all(kept, ignored);
    fs::rename(partial, kept);
    make_room(*directory_);
  } catch (const std::exception& error) {
    fs::remove_all(partial, ignored);
    log_warning(fmt::format("{}: the result cannot be kept there, so the next call makes it again: {}; set TRELLIS_CACHE to another directory, or to off", directory_->string(), error.what()));
  }
}

}  // namespace trellis::cli
