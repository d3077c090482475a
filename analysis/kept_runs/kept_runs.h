#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/content_hash.h"
#include "base/files/mapped_file.h"
#include "trainer/config/run_source.h"

/// Finished runs of `trellis simulate`, so that the same question is answered without loading the
/// trainer.
namespace trellis::analysis {

/// Everything that decides the result of a simulated run.
struct RunSources : trainer::RunSource {
  std::vector<std::string> options;             ///< all others that decide what a run says
  std::vector<std::filesystem::path> files;     ///< whose content counts
  std::vector<std::filesystem::path> binaries;  ///< the program and what it loads
};

/// Contents by file name.
using RunFiles = std::map<std::string, std::string>;
using RunFileViews = std::map<std::string, std::string_view>;

/// A trace that is kept next to the other files, since no answer needs its bytes. It is whole when
/// its size and time are those of the moment when it was kept, else by its hash.
struct LargeFile {
  std::uint64_t size = 0;
  std::int64_t time = 0;  ///< of the last change, as the file system counts
  ContentHash hash;
  bool operator==(const LargeFile&) const = default;
};
using LargeFiles = std::map<std::string, LargeFile>;

/// The files of a kept run.
class KeptRun {
 public:
  /// All but traces of kLargeBytes and more.
  [[nodiscard]] const RunFileViews& files() const { return files_; }
  /// Makes all of them in `folder`; large ones without a copy where that is possible.
  void write_to(const std::filesystem::path& folder) const;

 private:
  friend class KeptRuns;
  MappedFile file_;
  RunFileViews files_;                                  ///< parts of file_
  std::map<std::string, std::filesystem::path> large_;  ///< where they are kept
};

inline constexpr std::uintmax_t kLargeBytes = std::uintmax_t{1} << 20;

/// Represents everything that decides what a run says and writes: the resolved configuration
/// without the place of the run, the files of the machine's numbers, the options, the code, the
/// record that ranges come from, and the environment's variables of Neuron and Trellis. None: the
/// sources are wrong or incomplete, which the run itself will say.
[[nodiscard]] std::optional<ContentHash> run_key(const RunSources& sources);

/// The program, libtrellis_trainer.so and the device plugin.
[[nodiscard]] std::vector<std::filesystem::path> program_binaries();

/// Finished runs under `directory`/trellis_kept_runs, the last ones of them, at most 64 and at most
/// 1 GiB: one cache file (base/files/cache_file.h) each, KEY.run, which holds the run's files, and
/// KEY.NAME for each large one. A file there that is not a run of that key is never restored, and
/// never removed unless it is a cache file or a large file of one.
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
  [[nodiscard]] std::filesystem::path large_file_of(const ContentHash& key,
                                                    const std::string& name) const;

  std::optional<std::filesystem::path> directory_;
};

/// A run's files as the payload of a cache file; decode: none when the bytes are none, a name is
/// not a plain file name, or report.json is not among them.
struct DecodedRun {
  RunFileViews files;
  LargeFiles large;
  bool operator==(const DecodedRun&) const = default;
};
[[nodiscard]] std::string encode(const RunFiles& files, const LargeFiles& large = {});
[[nodiscard]] std::optional<DecodedRun> decode(std::string_view bytes);

}  // namespace trellis::analysis
