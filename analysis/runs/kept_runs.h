#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/content_hash.h"
#include "base/mapped_file.h"

/// Finished runs of `trellis simulate`, so that the same question is answered without loading the
/// trainer.
namespace trellis::analysis {

/// What a simulated run is made from.
struct RunSources {
  std::string config_file;
  std::vector<std::string> overrides;
  std::string instance = "trn1.32xlarge";
  int nodes = 1;
  std::vector<std::string> hardware;  ///< --set
  bool calibrated = true;
  std::vector<std::string> options;             ///< all others that decide what a run says
  std::vector<std::filesystem::path> files;     ///< whose content counts
  std::vector<std::filesystem::path> binaries;  ///< the program and what it loads
};

/// Contents by file name.
using RunFiles = std::map<std::string, std::string>;
using RunFileViews = std::map<std::string, std::string_view>;

/// The files of a kept run.
class KeptRun {
 public:
  [[nodiscard]] const RunFileViews& files() const { return files_; }

 private:
  friend class KeptRuns;
  MappedFile file_;
  RunFileViews files_;  ///< parts of file_
};

/// Represents everything that decides what a run says and writes: the resolved configuration
/// without the place of the run, the files of the machine's numbers, the options, the code, the
/// record that ranges come from, and the environment's variables of Neuron and Trellis. None: the
/// sources are wrong or incomplete, which the run itself will say.
[[nodiscard]] std::optional<ContentHash> run_key(const RunSources& sources);

/// The program, libtrellis_trainer.so and the device plugin.
[[nodiscard]] std::vector<std::filesystem::path> program_binaries();

/// Finished runs under `directory`/trellis_kept_runs, the last ones of them, at most 64 and at most
/// 1 GiB: one cache file (base/cache_file.h) each, which holds the run's files. A file there that
/// is not a run of that key is never restored, and never removed unless it is a cache file.
class KeptRuns {
 public:
  /// None: nothing is kept.
  explicit KeptRuns(std::optional<std::filesystem::path> directory);
  /// The files of that run by their names; none when it was not kept.
  [[nodiscard]] std::optional<KeptRun> find(const ContentHash& key) const;
  /// Keeps the files of `run` but those that say where it ran and how it was called. A run of more
  /// than 192 MiB, or with a trace that is a folder, is not kept; a place that cannot be written is
  /// reported as a warning.
  void store(const ContentHash& key, const std::filesystem::path& run) const;

 private:
  [[nodiscard]] std::filesystem::path file_of(const ContentHash& key) const;

  std::optional<std::filesystem::path> directory_;
};

/// A run's files as the payload of a cache file; decode: none when the bytes are none, a name is
/// not a plain file name, or report.json is not among them.
[[nodiscard]] std::string encode(const RunFiles& files);
[[nodiscard]] std::optional<RunFileViews> decode(std::string_view bytes);

}  // namespace trellis::analysis
