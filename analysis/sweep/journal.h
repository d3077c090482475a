#pragma once

#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "analysis/sweep/space.h"
#include "base/files/journal.h"
#include "base/process/shard.h"

namespace trellis::analysis {

/// DIR/journal.jsonl: the sweep's facts, then one line for each simulated candidate
/// (base/files/journal.h).
class SweepJournal {
 public:
  /// Throws ConfigError as JournalWriter.
  SweepJournal(const std::filesystem::path& folder, const SweepSpace& space, const Shard& shard,
               const nlohmann::json& facts);
  /// Results of earlier runs, in the order in which they came.
  [[nodiscard]] const std::vector<nlohmann::json>& results() const {
    return writer_.found().results;
  }
  void append(const nlohmann::json& result) { writer_.append(result); }

 private:
  JournalWriter writer_;
};

/// Throws ConfigError when there is none, or when it is damaged.
[[nodiscard]] JournalFile read_sweep_journal(const std::filesystem::path& folder);

/// The request that a journal was written for, its configuration by its absolute path.
[[nodiscard]] SweepRequest request_of(const JournalFile& journal);
/// Results of all shards of one sweep. Throws ConfigError: journals of different sweeps (names what
/// differs), shards that are missing or there twice with different results, a candidate with two
/// results that differ.
[[nodiscard]] std::vector<nlohmann::json> merge_journals(const std::vector<JournalFile>& journals,
                                                         const nlohmann::json& facts);

}  // namespace trellis::analysis
