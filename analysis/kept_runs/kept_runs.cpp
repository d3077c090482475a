#include "analysis/kept_runs/kept_runs.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "base/byte_codec.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/cache_file.h"
#include "base/files/run_lock.h"
#include "base/files/share_file.h"
#include "base/log.h"
#include "sim/config/number_files.h"
#include "traces/report/validity.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"

extern char** environ;

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "trellis.kept_run/3";
constexpr const char* kFolder = "trellis_kept_runs";
constexpr std::string_view kSuffix = ".run";
constexpr const char* kReport = "report.json";
constexpr const char* kTrace = "trace.";  ///< replaced as a whole, never changed in place
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

/// Neutral values of the places, so that equal runs at different places are the same.
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

struct FilesOfRun {
  RunFiles small;
  std::vector<std::string> large;  ///< names
};

/// The files of a run; none when they are too large, or a trace of it is a folder.
std::optional<FilesOfRun> files_of(const fs::path& run) {
  FilesOfRun files;
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTrace) && entry.is_directory()) return std::nullopt;
    if (is_of_the_call(name) || !entry.is_regular_file())
      continue;  // folders: outputs of earlier runs at the same place
    bytes += entry.file_size();
    if (bytes > kMostBytes) return std::nullopt;
    if (name.starts_with(kTrace) && entry.file_size() >= kLargeBytes) {
      files.large.push_back(name);
    } else {
      files.small[name] = read_text(entry.path());
    }
  }
  return files;
}

ContentHash hash_of(const fs::path& file) {
  const MappedFile mapped(file);
  ContentHasher hasher;
  hasher.text(mapped.text());
  return hasher.finish();
}

std::int64_t time_of(const fs::path& file) {
  return fs::last_write_time(file).time_since_epoch().count();
}

/// A copy of the cache has other times.
bool is_whole(const fs::path& file, const LargeFile& kept) {
  try {
    return fs::is_regular_file(fs::symlink_status(file)) && fs::file_size(file) == kept.size &&
           (time_of(file) == kept.time || hash_of(file) == kept.hash);
  } catch (const std::exception&) {
    return false;
  }
}

/// A name that stays within the folder of a run.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

/// True if store() made the file: the directory may hold files of others.
bool is_kept_run(const fs::path& file) {
  const std::string stem = file.stem().string();
  const bool named = file.extension() == kSuffix &&
                     stem.size() == ContentHash().to_string().size() &&
                     stem.find_first_not_of("0123456789abcdef") == std::string::npos;
  return named && is_cache_file(file);
}

/// Large files of all runs in `directory`, by their keys.
std::map<std::string, std::vector<fs::path>> large_files_in(const fs::path& directory) {
  const std::size_t length = ContentHash().to_string().size();
  std::map<std::string, std::vector<fs::path>> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool named = name.size() > length + 1 && name[length] == '.';
    if (named && entry.is_regular_file(ignored) && entry.path().extension() != kSuffix)
      files[name.substr(0, length)].push_back(entry.path());
  }
  return files;
}

/// The oldest go when there are too many, or they are too large together.
void free_space(const fs::path& directory) {
  std::vector<std::pair<fs::file_time_type, fs::path>> runs;
  std::error_code ignored;  // another process may remove the same ones
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    if (is_kept_run(entry.path())) runs.emplace_back(entry.last_write_time(ignored), entry.path());
  }
  std::sort(runs.begin(), runs.end(), std::greater<>());
  const auto large = large_files_in(directory);
  std::size_t kept = 0;
  std::uintmax_t bytes = 0;
  for (const auto& [time, file] : runs) {
    std::vector<fs::path> files{file};
    const auto found = large.find(file.stem().string());
    if (found != large.end()) files.insert(files.end(), found->second.begin(), found->second.end());
    for (const fs::path& one : files) {
      const std::uintmax_t size = fs::file_size(one, ignored);
      if (!ignored) bytes += size;
    }
    if (++kept <= kMostRuns && bytes <= kMostBytesOfAll) continue;
    for (const fs::path& one : files) fs::remove(one, ignored);
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

std::string encode(const RunFiles& files, const LargeFiles& large) {
  ByteWriter bytes;
  bytes(std::uint64_t{files.size()});
  for (const auto& [name, content] : files) {
    bytes(name);
    bytes(content);
  }
  bytes(std::uint64_t{large.size()});
  for (const auto& [name, file] : large) {
    bytes(name);
    bytes(file.size);
    bytes(file.time);
    bytes(file.hash.high);
    bytes(file.hash.low);
  }
  return bytes.bytes();
}

std::optional<DecodedRun> decode(std::string_view bytes) {
  ByteReader reader(bytes);
  DecodedRun run;
  bool plain = true;
  std::uint64_t count = 0, count_large = 0;
  reader(count);
  for (std::uint64_t i = 0; i < count && reader.ok() && plain; ++i) {
    std::string name;
    std::string_view content;
    reader(name);
    reader(content);
    plain = is_plain_name(name);
    run.files[name] = content;
  }
  reader(count_large);
  for (std::uint64_t i = 0; i < count_large && reader.ok() && plain; ++i) {
    std::string name;
    LargeFile file;
    reader(name);
    reader(file.size);
    reader(file.time);
    reader(file.hash.high);
    reader(file.hash.low);
    plain = is_plain_name(name);
    run.large[name] = file;
  }
  if (!reader.ok() || !reader.at_end() || !plain || run.files.size() != count ||
      run.large.size() != count_large || !run.files.contains(kReport))
    return std::nullopt;
  return run;
}

void KeptRun::write_to(const fs::path& folder) const {
  for (const auto& [name, content] : files_)
    write_file_atomically(folder / name, content, AtomicFile::Durability::kProcess);
  for (const auto& [name, kept] : large_) share_file(kept, folder / name);
}

KeptRuns::KeptRuns(std::optional<fs::path> directory) {
  if (directory) directory_ = *directory / kFolder;
}

fs::path KeptRuns::file_of(const ContentHash& key) const {
  return *directory_ / (key.to_string() + std::string(kSuffix));
}

fs::path KeptRuns::large_file_of(const ContentHash& key, const std::string& name) const {
  return *directory_ / (key.to_string() + "." + name);
}

std::optional<KeptRun> KeptRuns::find(const ContentHash& key) const {
  if (!directory_) return std::nullopt;
  std::optional<MappedPayload> mapped = map_cache_file(file_of(key), kSchema, key);
  if (!mapped) return std::nullopt;
  KeptRun run;
  run.file_ = std::move(mapped->file);
  std::optional<DecodedRun> decoded = decode(mapped->payload);
  const auto miss = [](const fs::path& file, const char* reason) {
    log_warning(
        fmt::format("{}: a cached result is ignored and made again: {}", file.string(), reason));
    return std::nullopt;
  };
  if (!decoded) return miss(file_of(key), "no files of a run");
  for (const auto& [name, large] : decoded->large) {
    const fs::path& file = run.large_[name] = large_file_of(key, name);
    if (!is_whole(file, large)) return miss(file, "missing, or changed");
  }
  run.files_ = std::move(decoded->files);
  return run;
}

void KeptRuns::store(const ContentHash& key, const fs::path& run) const {
  if (!directory_) return;
  try {
    const std::optional<FilesOfRun> files = files_of(run);
    if (!files) return;
    LargeFiles large;
    if (!files->large.empty()) fs::create_directories(*directory_);
    for (const std::string& name : files->large) {
      const fs::path kept = large_file_of(key, name);
      share_file(run / name, kept);
      large[name] = {fs::file_size(kept), time_of(kept), hash_of(kept)};
    }
    write_cache_file(file_of(key), kSchema, key, encode(files->small, large));
    free_space(*directory_);
  } catch (const std::exception& error) {
    log_warning(
        fmt::format("the result cannot be kept, so the next call makes it again: {}; set "
                    "TRELLIS_CACHE to another directory, or to off",
                    error.what()));
  }
}

}  // namespace trellis::analysis
