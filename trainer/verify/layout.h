#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/layout.h"

namespace trellis::trainer {

/// Axes over which a model can be distributed in addition to TP, PP and DP.
struct ModelAxes {
  int experts = 0;
  bool ring_attention = false;  ///< CP
  bool sliding_window = false;  ///< for which there is no balanced order
};

/// Every product TP · PP · DP · CP = ranks (CP with ring attention only, in each order) with VPP up
/// to the layers (PP > 1), with and without sequence parallelism (TP > 1) and ZeRO-1, fully sharded
/// (PP 1, DP or CP > 1; each number of copies that divides DP and leaves ranks to shard over), each
/// number of copies of key/value heads that divides TP, each recompute mode and, with experts, each
/// EP that divides DP and the experts. The validation of a configuration decides which of them are
/// legal for it; a combination that is not here is legal for none.
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
