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
  bool fsdp = false;  ///< with zero1
  int fsdp_replicas = 1;
  int kv_replicator = 1;
  int ep = 1;  ///< lies within DP
  int cp = 1;
  bool balanced_context = false;  ///< order of the sequence over CP
  Recompute recompute = Recompute::kNone;
  [[nodiscard]] int world_size() const { return tp * pp * dp * cp; }
  bool operator==(const Layout&) const = default;
};

/// "TP2 PP2 VPP2 DP2 CP2 balanced EP2 SP ZeRO1 KV2 full" (FSDP or "FSDP copies2" in place of
/// ZeRO1): factors of one and features that are off are left out; "one rank" when nothing is left.
[[nodiscard]] std::string to_string(const Layout& layout);

/// What a model can be spread over in addition to TP, PP and DP.
struct ModelAxes {
  int experts = 0;
  bool ring_attention = false;  ///< CP
  bool sliding_window = false;  ///< for which there is no balanced order
};

/// Every product TP · PP · DP · CP = ranks (CP with ring attention only, in each order) with VPP up
/// to the layers (PP > 1), with and without sequence parallelism (TP > 1) and ZeRO-1, fully sharded
/// (PP 1, DP or CP > 1; each number of copies that divides DP and leaves ranks to shard over), each
/// number of copies of key/value heads that divides TP, each recompute
/// mode and, with experts, each EP that divides DP and the experts. Whether one is legal for a
/// configuration is for its validation to say; a combination that is not here is legal for none.
[[nodiscard]] std::vector<Layout> all_layouts(int ranks, int num_layers,
                                              const ModelAxes& axes = {});

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
