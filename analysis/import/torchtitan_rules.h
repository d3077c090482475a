#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/import/imported_config.h"
#include "analysis/import/torchtitan_table.h"

namespace trellis::analysis {

/// Values of a torchtitan file by key, with torchtitan's defaults for what it does not say.
class TorchtitanValues {
 public:
  explicit TorchtitanValues(const std::vector<SourceKey>& keys);
  [[nodiscard]] bool has(std::string_view key) const { return values_.contains(key); }
  /// Without quotes; "" when the key is absent.
  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key, const char* otherwise) const;
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  [[nodiscard]] double number(std::string_view key, double otherwise) const;
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

/// Ranks and batches: the file does not say how many ranks there are when they shard what is left.
struct TorchtitanLayout {
  std::int64_t tp = 1, pp = 1, cp = 1, dp = 1;
  std::int64_t devices = 1, nodes = 1;  ///< devices: of a node
  std::int64_t micro_batch = 8, global_batch = 8;
  bool assumed = false;  ///< the number of ranks is that of one trn1.32xlarge
};
[[nodiscard]] TorchtitanLayout torchtitan_layout(const TorchtitanValues& values);

/// The flavor of llama3 that the file names; null: another model.
[[nodiscard]] const TorchtitanFlavor* torchtitan_flavor(const TorchtitanValues& values);

/// The settings that several keys decide together.
[[nodiscard]] std::vector<Setting> torchtitan_model(const TorchtitanFlavor& flavor);
/// model.optim.sched, with the defaults; `refused`: why there is none.
struct TorchtitanSchedule {
  std::string name, refused;
  std::int64_t hold_steps = 0;
  std::string min_lr;
};
[[nodiscard]] TorchtitanSchedule torchtitan_schedule(const TorchtitanValues& values);

using TorchtitanRule = ImportedKey (*)(const SourceKey& source, const TorchtitanValues& values);
/// The rule of a row that a rule decides; null: there is none; every such row has one.
[[nodiscard]] TorchtitanRule torchtitan_rule(std::string_view key);
/// Rules of the layout, the batches and the pipeline; of models, data and checkpoints.
[[nodiscard]] TorchtitanRule torchtitan_layout_rule(std::string_view key);
[[nodiscard]] TorchtitanRule torchtitan_run_rule(std::string_view key);

}  // namespace trellis::analysis
