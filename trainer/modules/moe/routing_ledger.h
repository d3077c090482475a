#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace trellis::trainer {

/// Picks of the routers of one layer in a step, over all ranks. Invariant: Σ kept = tokens · k −
/// drops.
struct LayerLoad {
  std::vector<std::int64_t> assigned;  ///< by expert: picks of the router
  std::vector<std::int64_t> kept;      ///< by expert: those that were computed
  /// By expert: rows that were computed for them, which the layout decides: slots that stayed empty
  /// and padding to whole blocks too.
  std::vector<std::int64_t> computed;
  [[nodiscard]] std::int64_t routed() const;   ///< Σ kept
  [[nodiscard]] std::int64_t dropped() const;  ///< Σ assigned − Σ kept
  /// The most loaded expert's share of what an even routing would give it: 1 when it is even.
  [[nodiscard]] double imbalance() const;
  bool operator==(const LayerLoad&) const = default;
};
/// By index of the layer in the whole model.
using RoutedTokens = std::map<int, LayerLoad>;

/// Where the ranks of a run, which are threads, add up what their routers did. One rank of a TP
/// group speaks for all: they route alike.
class RoutingLedger {
 public:
  void add(int layer, const LayerLoad& load);
  /// Returns what was added since the last call and clears it. REQUIRES: no thread adds at the same
  /// time.
  [[nodiscard]] RoutedTokens take();

 private:
  std::mutex mutex_;
  RoutedTokens layers_;
};

}  // namespace trellis::trainer
