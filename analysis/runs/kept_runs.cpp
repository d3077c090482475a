#include "analysis/runs/kept_runs.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "base/byte_codec.h"
#include "base/cache_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/run_lock.h"
#include "sim/config/number_files.h"
#include "trainer/config/run_config.h"
#include "analysis/report/validity.h"

extern char** environ;

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "trellis.kept_run/2";
constexpr const char* kFolder = "trellis_kept_runs";
constexpr std::string_view kSuffix = ".run";
constexpr const char* kReport = "report.json";
constexpr std::uintmax_t kMostBytes = 192 << 20;
constexpr std::uintmax_t kMostBytesOfAll = std::uintmax_t{1} << 30;
constexpr std::size_t kMostRuns = 64;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Written again for each run.
bool is_of_the_call(const std::string& name) {
  return name == "hparams.yaml" || name == "cmd-args.log" || name == RunLock::kFileName;
}

/// Of equal runs at different places the same.
constexpr const char* kPlaces[] = {"exp_manager.explicit_log_dir=null", "exp_manager.exp_dir=null",
                                   "exp_manager.name=null", "exp_manager.version=null"};

void add_environment(ContentHasher& hasher) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto begins = [&text](const char* prefix) { return text.starts_with(prefix); };
    const bool ours = begins("TRELLIS_") || begins("NEURON_") ||
                      begins("ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB=") ||
                      begins("ALLREDUCE_BUCKET_CAP_MB=");
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

/// By the files of its numbers: parsing them takes a fifth of the time of an answer that was kept.
void add_machine(ContentHasher& hasher, const RunSources& sources,
                 const trainer::RunConfig& config) {
  for (const fs::path& file : sim::number_files()) {
    hasher.text(file.filename().string());
    hasher.text(read_text(file));
  }
  hasher.text(sources.instance);
  hasher.value(sources.nodes);
  for (const std::string& number : sources.hardware) hasher.text(number);
  hasher.value(sources.calibrated);
  hasher.text(config.software);
}

/// The files of a run; none when they are too large, or a trace of it is a folder.
std::optional<RunFiles> files_of(const fs::path& run) {
  RunFiles files;
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trace.") && entry.is_directory()) return std::nullopt;
    if (is_of_the_call(name) || !entry.is_regular_file())
      continue;  // folders: outputs of earlier runs at the same place
    bytes += entry.file_size();
    if (bytes > kMostBytes) return std::nullopt;
    files[name] = read_text(entry.path());
  }
  return files;
}

/// A name that stays within the folder of a run.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

/// Whether store() made it: the place may hold files of others.
bool is_kept_run(const fs::path& file) {
  const std::string stem = file.stem().string();
  const bool named = file.extension() == kSuffix &&
                     stem.size() == ContentHash().to_string().size() &&
                     stem.find_first_not_of("0123456789abcdef") == std::string::npos;
  return named && is_cache_file(file);
}

/// The oldest go when there are too many, or they are too large together.
void free_space(const fs::path& directory) {
  std::vector<std::pair<fs::file_time_type, fs::path>> runs;
  std::error_code ignored;  // another process may remove the same ones
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    if (is_kept_run(entry.path())) runs.emplace_back(entry.last_write_time(ignored), entry.path());
  }
  std::sort(runs.begin(), runs.end(), std::greater<>());
  std::size_t kept = 0;
  std::uintmax_t bytes = 0;
  for (const auto& [time, file] : runs) {
    const std::uintmax_t size = fs::file_size(file, ignored);
    if (ignored) continue;
    bytes += size;
    if (++kept > kMostRuns || bytes > kMostBytesOfAll) fs::remove(file, ignored);
  }
}

}  // namespace

std::vector<fs::path> program_binaries() {
  const fs::path self = fs::canonical("/proc/self/exe"),
                 libraries = self.parent_path().parent_path() / "lib";
  const char* chosen = std::getenv("TRELLIS_DEVICE_PLUGIN");
  return {
      self, libraries / "libtrellis_trainer.so",
      chosen != nullptr && *chosen != '\0' ? fs::path(chosen) : libraries / "libtrellis_neuron.so"};
}

std::optional<ContentHash> run_key(const RunSources& sources) {
  std::vector<std::string> overrides = sources.overrides;
  overrides.insert(overrides.end(), std::begin(kPlaces), std::end(kPlaces));
  ContentHasher hasher;
  try {
    const trainer::RunCheck check =
        trainer::check_run_config(sources.config_file, overrides, sources.instance);
    // Files that are copied into the run's folder are of the call, not of the run.
    if (!check.problems.empty() || !check.config.exp_manager.files_to_copy.empty())
      return std::nullopt;
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
  hasher.text(read_text(published_directory() / "validated.yaml"));
  add_environment(hasher);
  return hasher.finish();
}

std::string encode(const RunFiles& files) {
  ByteWriter bytes;
  bytes(std::uint64_t{files.size()});
  for (const auto& [name, content] : files) {
    bytes(name);
    bytes(content);
  }
  return bytes.bytes();
}

std::optional<RunFileViews> decode(std::string_view bytes) {
  ByteReader reader(bytes);
  RunFileViews files;
  std::uint64_t count = 0;
  reader(count);
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    std::string name;
    std::string_view content;
    reader(name);
    reader(content);
    if (!is_plain_name(name)) return std::nullopt;
    files[name] = content;
  }
  if (!reader.ok() || !reader.at_end() || files.size() != count || !files.contains(kReport))
    return std::nullopt;
  return files;
}

KeptRuns::KeptRuns(std::optional<fs::path> directory) {
  if (directory) directory_ = *directory / kFolder;
}

fs::path KeptRuns::file_of(const ContentHash& key) const {
  return *directory_ / (key.to_string() + std::string(kSuffix));
}

std::optional<KeptRun> KeptRuns::find(const ContentHash& key) const {
  if (!directory_) return std::nullopt;
  std::optional<MappedPayload> mapped = map_cache_file(file_of(key), kSchema, key);
  if (!mapped) return std::nullopt;
  KeptRun run;
  run.file_ = std::move(mapped->file);
  std::optional<RunFileViews> files = decode(mapped->payload);
  if (!files) {
    log_warning(fmt::format("{}: a cached result is ignored and made again: no files of a run",
                            file_of(key).string()));
    return std::nullopt;
  }
  run.files_ = *std::move(files);
  return run;
}

void KeptRuns::store(const ContentHash& key, const fs::path& run) const {
  if (!directory_) return;
  try {
    const std::optional<RunFiles> files = files_of(run);
    if (!files) return;
    write_cache_file(file_of(key), kSchema, key, encode(*files));
    free_space(*directory_);
  } catch (const std::exception& error) {
    log_warning(
        fmt::format("the result cannot be kept, so the next call makes it again: {}; set "
                    "TRELLIS_CACHE to another directory, or to off",
                    error.what()));
  }
}

}  // namespace trellis::analysis
