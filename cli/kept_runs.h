#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/content_hash.h"

/// Finished runs of `trellis simulate`, so that the same question is answered without loading the trainer.
namespace trellis::cli {

/// What a simulated run is made from.
struct RunSources {
  std::string config_file;
  std::vector<std::string> overrides;
  std::string instance = "trn1.32xlarge";
  int nodes = 1;
  std::vector<std::string> hardware;     ///< --set
  bool calibrated = true;
  std::vector<std::string> options;      ///< all others that decide what a run says
  std::vector<std::filesystem::path> files;     ///< whose content counts
  std::vector<std::filesystem::path> binaries;  ///< the program and what it loads
};

/// Stands for everything that decides what a run says and writes: the resolved configuration without the place of the run, every number of the machine,
/// the options, the code, the record that ranges come from, and the environment's variables of Neuron and Trellis. None: the sources are wrong or
/// incomplete, which the run itself will say.
[[nodiscard]] std::optional<ContentHash> run_key(const RunSources& sources);

/// The program, libtrellis_trainer.so and the device plugin.
[[nodiscard]] std::vector<std::filesystem::path> program_binaries();

/// Folders of finished runs under `directory`/runs, the last 64 of them. A folder is copied in under another name and renamed; one that is damaged is
/// told of and made anew.
class KeptRuns {
 public:
  /// None: nothing is kept.
  explicit KeptRuns(std::optional<std::filesystem::path> directory);
  [[nodiscard]] bool has(const ContentHash& key) const;
  /// Copies the files of that run into `run`, which stands there; false when none is kept.
  [[nodiscard]] bool restore(const ContentHash& key, const std::filesystem::path& run) const;
  /// Keeps the files of `run` but those that say where it ran and how it was called. A run of more than 64 MiB is not kept; a place that cannot be
  /// written is told of.
  void store(const ContentHash& key, const std::filesystem::path& run) const;

 private:
  std::optional<std::filesystem::path> directory_;
};

}  // namespace trellis::cli
