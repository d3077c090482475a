#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/files/journal.h"
#include "trainer/verify/verify_result.h"

namespace trellis::trainer {

/// The finished layouts of a verification (base/files/journal.h): a line for each, and one for the
/// tolerances that were derived.
class VerifyJournal {
 public:
  /// Nothing is kept.
  VerifyJournal() = default;
  /// DIR/journal.jsonl of this verification, or a shard of it. Throws ConfigError as JournalWriter.
  VerifyJournal(const VerifyRequest& request, const Shard& shard, const nlohmann::json& facts);
  /// The journals of all shards, which `request` names. Throws ConfigError as check_all_shards.
  VerifyJournal(const VerifyRequest& request, const nlohmann::json& facts);

  /// The comparison of a finished layout; none: it is not finished.
  [[nodiscard]] std::optional<Comparison> find(const Layout& layout,
                                               const std::string& precision) const;
  [[nodiscard]] const DerivedTolerances& derived() const { return derived_; }
  void add(const LayoutResult& result);
  void add(const DerivedTolerances& derived);

 private:
  void take(const JournalFile& journal);

  std::unique_ptr<JournalWriter> writer_;
  std::map<std::pair<std::string, std::string>, Comparison> found_;  ///< by layout and precision
  DerivedTolerances derived_;
};

/// The request whose shards `folders` hold, with its configuration by the absolute path. Throws
/// ConfigError when a journal is missing or damaged.
[[nodiscard]] VerifyRequest merged_request(const std::vector<std::string>& folders);

/// {"what", "layer", "error", "by_share", "tolerance"}; an infinite error is null.
[[nodiscard]] nlohmann::json to_json(const Deviation& deviation);

}  // namespace trellis::trainer
