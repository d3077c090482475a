#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/files/run_lock.h"
#include "base/process/shard.h"

namespace trellis {

/// DIR/journal.jsonl of a long work, or of a shard of one: a head, then one JSON object for each
/// result, written whole when it is there. A work that is cut off anywhere goes on from it.
///
/// The head has `schema`, `shard` ("1/1": the whole) and `facts`: what the results depend on, name
/// to text.
struct JournalFile {
  std::filesystem::path file;
  nlohmann::json head;
  std::vector<nlohmann::json> results;  ///< in the order in which they came
};

/// How a kind of journal reads.
struct JournalKind {
  const char* schema;  ///< of the head
  const char* verb;    ///< "verify", for errors
  const char* work;    ///< "verification"
  const char* item;    ///< "candidate is simulated", for the warning of a torn last line
};

/// Throws ConfigError when there is none, when it is of another kind, or when a line is damaged. A
/// torn last line is left out with a warning. Members of lines are the caller's to check.
[[nodiscard]] JournalFile read_journal(const JournalKind& kind,
                                       const std::filesystem::path& folder);

/// "--gbs: 64 there, 128 here"; "" when both are equal.
[[nodiscard]] std::string differing_facts(const nlohmann::json& there, const nlohmann::json& here);

/// Throws ConfigError: `journals` are not all shards of one cut of one work, whose facts are
/// `facts`; names what differs, or is missing.
void check_all_shards(const std::vector<JournalFile>& journals, const nlohmann::json& facts);

/// Writes a journal; no other process does while it lives.
class JournalWriter {
 public:
  /// Opens or makes it. `head` as JournalFile says. Throws ConfigError: no folder can be made
  /// there, the journal is damaged or that of another work (names what differs), or another process
  /// writes there.
  JournalWriter(const JournalKind& kind, const std::filesystem::path& folder,
                const nlohmann::json& head);
  /// Results of earlier runs.
  [[nodiscard]] const JournalFile& found() const { return journal_; }
  void append(const nlohmann::json& result);

 private:
  RunLock lock_;
  JournalFile journal_;
};

}  // namespace trellis
