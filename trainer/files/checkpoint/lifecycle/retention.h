#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trellis::checkpoint {

/// A complete checkpoint as the rules of keeping see it.
struct KeptCheckpoint {
  std::string tag;
  std::int64_t step = 0;
  std::int64_t sequence = 0;     ///< 1, 2, … in the order in which they were saved into the folder
  std::optional<double> metric;  ///< none: worse than any
  bool has_states = true;        ///< of the optimizer
  bool is_own = true;  ///< of this run, under the name that it gave: no other is ever removed
  [[nodiscard]] bool is_last() const;  ///< a "-last" copy
  bool operator==(const KeptCheckpoint&) const = default;
};

/// How many checkpoints stay, by which number.
struct KeepRule {
  int save_top_k = 3;  ///< −1: all; 0: none
  bool mode_max = false;
  int with_states = -1;  ///< the newest so many keep those of the optimizer; −1: all
};

/// True if a new checkpoint with this metric would be among the best of the run's own. Among
/// checkpoints with equal metrics the newest counts as best.
[[nodiscard]] bool is_worth_keeping(const std::vector<KeptCheckpoint>& kept,
                                    std::optional<double> metric, const KeepRule& rule);
/// Own tags to remove: all but the best save_top_k, and all "-last" copies but the newest. The
/// worst first.
[[nodiscard]] std::vector<std::string> tags_to_remove(std::vector<KeptCheckpoint> kept,
                                                      const KeepRule& rule);

/// Own tags of those that have states of the optimizer and are to lose them: all but the newest
/// with_states and "-last" copies.
[[nodiscard]] std::vector<std::string> tags_to_strip(const std::vector<KeptCheckpoint>& kept,
                                                     const KeepRule& rule);

}  // namespace trellis::checkpoint
