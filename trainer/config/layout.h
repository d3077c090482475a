#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// One way to spread a model over ranks, with what changes how it computes but must not change
/// what.
struct Layout {
  int tp = 1, pp = 1, vpp = 1, dp = 1;
  bool sequence_parallel = false;
  bool zero1 = true;
  bool fsdp = false;  ///< with zero1
  int fsdp_replicas = 1;
  int kv_replicator = 1;
  int ep = 1;  ///< lies within DP
  int cp = 1;
  bool balanced_context = false;  ///< order of the sequence over CP
  Recompute recompute = Recompute::kNone;
  [[nodiscard]] int world_size() const { return tp * pp * dp * cp; }
  auto operator<=>(const Layout&) const = default;
};

[[nodiscard]] Layout layout_of(const RunConfig& config);

/// "TP2", "PP2", "VPP2", "DP2", "CP2", "balanced", "EP2": factors of one are left out.
[[nodiscard]] std::vector<std::string> factors_of(const Layout& layout);
/// "SP", "ZeRO1" (or "FSDP", "copies2"), "KV2", "full": what is off is left out.
[[nodiscard]] std::vector<std::string> switches_of(const Layout& layout);
/// Both, separated by spaces; "one rank" when nothing is left.
[[nodiscard]] std::string to_string(const Layout& layout);

/// `key=value` overrides that give a configuration this layout on the ranks that it has. Stages are
/// cut evenly. The order of a sequence over CP and the copies of fully sharded weights stay.
[[nodiscard]] std::vector<std::string> layout_overrides(const Layout& layout);

}  // namespace trellis::trainer
