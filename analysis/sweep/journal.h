#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/run_lock.h"
#include "analysis/sweep/space.h"

namespace trellis::analysis {

/// Part `index` of `count`: the candidates whose place leaves that remainder.
struct Shard {
  std::size_t index = 0, count = 1;
  [[nodiscard]] bool has(std::size_t place) const { return place % count == index; }
  [[nodiscard]] std::string text() const {
    return std::to_string(index + 1) + "/" + std::to_string(count);
  }
};
/// "2/8": the second of eight. Throws ConfigError.
[[nodiscard]] Shard parse_shard(const std::string& text);

/// DIR/journal.jsonl: the sweep's facts, then one line for each simulated candidate, written whole
/// when its result is there. A sweep that is cut off anywhere goes on from it.
class Journal {
 public:
  /// Opens or makes it. Throws ConfigError: no folder can be made there, a line in the middle is
  /// damaged, or the folder holds another sweep (names what differs), or another process writes
  /// there. A torn last line is cut off with a warning.
  Journal(const std::filesystem::path& folder, const SweepSpace& space, const Shard& shard,
          const nlohmann::json& facts);
  /// Results of earlier runs, in the order in which they came.
  [[nodiscard]] const std::vector<nlohmann::json>& results() const { return results_; }
  void append(const nlohmann::json& result);

 private:
  std::filesystem::path file_;
  std::optional<RunLock> lock_;
  std::vector<nlohmann::json> results_;
};

/// A journal as it lies there.
struct JournalFile {
  std::filesystem::path file;
  nlohmann::json header;
  std::vector<nlohmann::json> results;
};
/// Throws ConfigError when there is none, or when it is damaged. A torn last line is left out with
/// a warning.
[[nodiscard]] JournalFile read_journal(const std::filesystem::path& folder);

/// The request that a journal was written for, its configuration by its absolute path.
[[nodiscard]] SweepRequest request_of(const JournalFile& journal);
/// Results of all shards of one sweep. Throws ConfigError: journals of different sweeps (names what
/// differs), shards that are missing or there twice with different results, a candidate with two
/// results that differ.
[[nodiscard]] std::vector<nlohmann::json> merge_journals(const std::vector<JournalFile>& journals,
                                                         const nlohmann::json& facts);

}  // namespace trellis::analysis
