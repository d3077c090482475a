#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// One way to spread a model over ranks, with what changes how it computes but must not change
/// what.
struct Layout {
  int tp = 1, pp = 1, vpp = 1, dp = 1;
  bool sequence_parallel = false;
  bool zero1 = true;
  int kv_replicator = 1;
  int ep = 1;  ///< lies within DP
  Recompute recompute = Recompute::kNone;
  [[nodiscard]] int world_size() const { return tp * pp * dp; }
  bool operator==(const Layout&) const = default;
};

/// "TP2 PP2 VPP2 DP2 EP2 SP ZeRO1 KV2 full": factors of one and features that are off are left out;
/// "one rank" when nothing is left.
[[nodiscard]] std::string to_string(const Layout& layout);

/// Every product TP · PP · DP = ranks with VPP up to the layers (PP > 1), with and without sequence
/// parallelism (TP > 1) and ZeRO-1, each number of copies of key/value heads that divides TP, each
/// recompute mode and, with experts, each EP that divides DP and the experts. Whether one is legal
/// for a configuration is for its validation to say; a combination that is not here is legal for
/// none.
[[nodiscard]] std::vector<Layout> all_layouts(int ranks, int num_layers, int num_experts = 0);

/// "TP2.DP4,PP4": a layout is chosen when it has every part of one of the items. "all" or "": every
/// layout. Throws ConfigError for a part that no layout can have.
class LayoutFilter {
 public:
  explicit LayoutFilter(std::string_view text);
  [[nodiscard]] bool chooses(const Layout& layout) const;

 private:
  std::vector<std::vector<std::string>> items_;
};

/// `key=value` overrides that give a configuration this layout.
[[nodiscard]] std::vector<std::string> overrides_of(const Layout& layout);

}  // namespace trellis::trainer
