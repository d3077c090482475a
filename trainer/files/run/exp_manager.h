#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/run_lock.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Folder of checkpoints in a run's directory, unless checkpoint_callback_params.dirpath names
/// another place.
inline constexpr const char* kCheckpointFolder = "checkpoints";

/// Sources of a run's version name when the configuration gives none.
struct VersionSources {
  std::string environment;  ///< NEMO_EXPM_VERSION, "" when unset: launch scripts set it so that all
                            ///< nodes agree
  std::string date_time;    ///< now, as YYYY-MM-DD_HH-MM-SS

  static VersionSources of_this_process();
};

/// Where a run writes, and no other process while `lock` lives.
struct RunDirectory {
  std::filesystem::path path;
  RunLock lock;
  /// Unique, and the same at every start there: checkpoints say by it whose they are. "": the run
  /// saves none.
  std::string run_id = {};
  /// hparams.yaml of an earlier start there names the same place of checkpoints.
  bool saved_before = false;
};

/// The directory that prepare_run_directory() will use when the configuration names it; none where
/// every run gets a new one. exp_manager.resume_if_exists without a version names exp_dir/name, so
/// that the runs of one job share it.
[[nodiscard]] std::optional<std::filesystem::path> named_run_directory(
    const RunConfig& config, const VersionSources& sources);

/// The same, or a new directory, which is there afterwards: for a program that runs several
/// attempts of one run. Throws ConfigError when it cannot be made.
[[nodiscard]] std::filesystem::path named_or_new_run_directory(const RunConfig& config,
                                                               const VersionSources& sources);

/// The run that goes on when runs each had a new directory: of those in exp_dir/name the one that
/// saved last. None: the configuration names the place of its checkpoints. Throws ConfigError when
/// no run has any.
[[nodiscard]] std::optional<std::filesystem::path> resumed_run_directory(const RunConfig& config);

/// Creates the directory that holds everything a run writes and puts hparams.yaml (the resolved
/// configuration), cmd-args.log and the files of exp_manager.files_to_copy there. It is
/// explicit_log_dir, or exp_dir/name/version, the version being, in this order,
/// exp_manager.version, NEMO_EXPM_VERSION, the date and time, or the next free version_N. The last
/// two always make a new directory; in one that the user named, outputs of an earlier run are moved
/// into its next free run_N. `created` is called before any output is written there. Call it once
/// per run. Throws ConfigError when the place cannot be written, another process writes there, or a
/// file cannot be read.
[[nodiscard]] RunDirectory prepare_run_directory(
    const RunConfig& config, const std::vector<std::string>& command_line,
    const VersionSources& sources = VersionSources::of_this_process(),
    const std::function<void(const std::string& directory)>& created = {});

/// Removes what a run writes there, and the directory when nothing else is in it. Says nothing
/// about files that are not there or cannot be removed; returns whether one was.
bool remove_run_outputs(const std::filesystem::path& directory);

}  // namespace trellis::trainer
