#include "trainer/files/run/exp_manager.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/atomic_file.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_create(const fs::path& path, const std::string& reason) {
  throw ConfigError(
      path.string() + ": cannot create the run directory: " + reason +
      "; choose another place with exp_manager.exp_dir or exp_manager.explicit_log_dir");
}

/// False when `path` is there already.
bool create_new(const fs::path& path) {
  std::error_code error;
  const bool created = fs::create_directory(path, error);
  if (error) cannot_create(path, error.message());
  return created;
}

void create_all(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) cannot_create(path, error.message());
}

/// One more than the largest N of the directories "<prefix>N" in `parent`; 0 when there is none.
int next_number(const fs::path& parent, const std::string& prefix) {
  int next = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    int number = 0;
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + prefix.size(), last, number);
    if (error == std::errc() && end == last && number >= next) next = number + 1;
  }
  return next;
}

/// Another process may take the same number at the same moment: whoever creates the directory has
/// it.
fs::path create_numbered(const fs::path& parent, const std::string& prefix) {
  for (;;) {
    const fs::path path = parent / (prefix + std::to_string(next_number(parent, prefix)));
    if (create_new(path)) return path;
  }
}

/// The date and time, with _1, _2 … after it when two runs start within a second.
fs::path create_dated(const fs::path& parent, const std::string& date_time) {
  const fs::path path = parent / date_time;
  if (create_new(path)) return path;
  for (int i = 1;; ++i) {
    const fs::path numbered = parent / (date_time + "_" + std::to_string(i));
    if (create_new(numbered)) return numbered;
  }
}

/// True if a run writes a file of this name. A directory that the user named may also hold other
/// files.
bool is_output(const std::string& name) {
  static constexpr const char* kOutputs[] = {
      "hparams.yaml",       "cmd-args.log",   "metrics.jsonl",
      "report.json",        "host.json",      "portability.json",
      "trace.pftrace",      "trace.txt",      "memory_timeline.json",
      "trace.kineto",       "trace.chakra",   "nemo_error_log.txt",
      "lightning_logs.txt", "flight_recorder"};
  return name.starts_with("events.out.tfevents.") || name.starts_with("nemo_log_globalrank-") ||
         std::ranges::find(kOutputs, name) != std::end(kOutputs);
}

void keep_earlier_outputs(const fs::path& directory) {
  std::vector<fs::path> outputs;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (is_output(entry.path().filename().string())) outputs.push_back(entry.path());
  }
  if (outputs.empty()) return;
  const fs::path kept = create_numbered(directory, "run_");
  for (const fs::path& file : outputs) {
    std::error_code error;
    fs::rename(file, kept / file.filename(), error);
    if (error)
      cannot_create(directory, "cannot move " + file.string() + " into " + kept.string() + ": " +
                                   error.message());
  }
}

fs::path create_new_directory(const ExpManagerSection& section, const VersionSources& sources) {
  const fs::path parent = fs::path(section.exp_dir) / section.name;
  create_all(parent);
  return section.use_datetime_version ? create_dated(parent, sources.date_time)
                                      : create_numbered(parent, "version_");
}

void copy_files(const std::vector<std::string>& files, const fs::path& directory) {
  for (const std::string& file : files) {
    std::error_code error;
    fs::copy_file(file, directory / fs::path(file).filename(), fs::copy_options::overwrite_existing,
                  error);
    if (!error) continue;
    throw ConfigError("exp_manager.files_to_copy: cannot copy " + file + " into " +
                      directory.string() + ": " + error.message() +
                      "; correct the path or remove it from the list");
  }
}

constexpr const char* kRunIdFile = ".trellis.run";
constexpr const char* kConfigFile = "hparams.yaml";

std::string run_id_of(const fs::path& directory) {
  const fs::path file = directory / kRunIdFile;
  std::string id;
  if (std::ifstream(file) >> id) return id;
  std::random_device random;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random());
  write_file_atomically(file, id + "\n");
  return id;
}

/// The line of a resolved configuration that says where checkpoints are.
std::string checkpoint_line(const std::string& resolved_yaml) {
  const std::size_t section = resolved_yaml.find("checkpoint_callback_params:");
  const std::size_t begin =
      section == std::string::npos ? section : resolved_yaml.find("dirpath:", section);
  if (begin == std::string::npos) return "";
  return resolved_yaml.substr(begin, resolved_yaml.find('\n', begin) - begin);
}

bool names_the_same_checkpoints(const fs::path& directory, const RunConfig& config) {
  std::ifstream file(directory / kConfigFile);
  const std::string earlier{std::istreambuf_iterator<char>(file), {}};
  return !earlier.empty() && checkpoint_line(earlier) == checkpoint_line(config.resolved_yaml);
}

/// The arguments as one line that a shell reads back.
std::string shell_line(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& argument : arguments)
    line += (line.empty() ? "" : " ") + shell_word(argument);
  return line + "\n";
}

}  // namespace

VersionSources VersionSources::of_this_process() {
  VersionSources sources;
  if (const char* version = std::getenv("NEMO_EXPM_VERSION")) sources.environment = version;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[sizeof "YYYY-MM-DD_HH-MM-SS"];
  std::strftime(text, sizeof text, "%Y-%m-%d_%H-%M-%S", &local);
  sources.date_time = text;
  return sources;
}

std::optional<fs::path> named_run_directory(const RunConfig& config,
                                            const VersionSources& sources) {
  const ExpManagerSection& section = config.exp_manager;
  const fs::path parent = fs::path(section.exp_dir) / section.name;
  const std::string version = section.version.empty() ? sources.environment : section.version;
  if (const std::string why = why_no_folder_below(version); !why.empty())
    throw ConfigError("NEMO_EXPM_VERSION: " + why);
  if (!section.explicit_log_dir.empty()) return section.explicit_log_dir;
  if (!version.empty()) return parent / version;
  if (section.checkpoints.resume_if_exists) return parent;
  return std::nullopt;
}

fs::path named_or_new_run_directory(const RunConfig& config, const VersionSources& sources) {
  const std::optional<fs::path> named = named_run_directory(config, sources);
  return named ? *named : create_new_directory(config.exp_manager, sources);
}

std::optional<fs::path> resumed_run_directory(const RunConfig& config) {
  const ExpManagerSection& section = config.exp_manager;
  const fs::path parent = fs::path(section.exp_dir) / section.name;
  const bool shared = named_run_directory(config, VersionSources::of_this_process()) == parent;
  if (!shared || !section.checkpoints.dirpath.empty() || fs::exists(parent / kCheckpointFolder))
    return std::nullopt;
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const fs::path folder = entry.path() / kCheckpointFolder;
    if (!fs::is_directory(folder, ignored)) continue;
    const std::pair found{fs::last_write_time(folder, ignored), entry.path()};
    if (!newest || found > *newest) newest = found;
  }
  if (!newest)
    throw ConfigError("--resume: " + parent.string() +
                      " holds no run with checkpoints; name the run's directory with "
                      "exp_manager.explicit_log_dir, or start without --resume");
  return newest->second;
}

RunDirectory prepare_run_directory(const RunConfig& config,
                                   const std::vector<std::string>& command_line,
                                   const VersionSources& sources,
                                   const std::function<void(const std::string&)>& created) {
  const std::optional<fs::path> named = named_run_directory(config, sources);
  if (named) create_all(*named);
  const fs::path directory = named ? *named : create_new_directory(config.exp_manager, sources);
  RunLock lock(directory,
               "choose another place with exp_manager.exp_dir or exp_manager.explicit_log_dir");
  const bool saved_before = names_the_same_checkpoints(directory, config);
  if (named) keep_earlier_outputs(directory);
  if (created) created(directory.string());
  write_file_atomically(directory / kConfigFile, config.resolved_yaml);
  write_file_atomically(directory / "cmd-args.log", shell_line(command_line));
  copy_files(config.exp_manager.files_to_copy, directory);
  const bool saves = config.exp_manager.checkpoints.create;
  return {directory, std::move(lock), saves ? run_id_of(directory) : "", saved_before};
}

bool remove_run_outputs(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> outputs;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".partial")) name.resize(name.size() - std::string_view(".partial").size());
    if (is_output(name)) outputs.push_back(entry.path());
  }
  fs::remove(directory / RunLock::kFileName, ignored);
  fs::remove(directory / kRunIdFile, ignored);
  bool removed = false;
  for (const fs::path& file : outputs) removed = fs::remove(file, ignored) || removed;
  fs::remove(directory, ignored);  // only an empty one goes
  return removed;
}

}  // namespace trellis::trainer
