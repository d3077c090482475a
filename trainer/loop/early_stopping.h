#pragma once

#include <optional>
#include <string>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Ends a run when a monitored number stops improving. A function of the numbers alone: every rank
/// comes to the same decision.
class EarlyStopping {
 public:
  /// Throws ConfigError for a mode other than min and max.
  explicit EarlyStopping(const EarlyStoppingSection& section);
  /// A new value of the monitored number; why the run ends, or none.
  std::optional<std::string> update(double value);
  [[nodiscard]] const std::string& monitor() const { return section_.monitor; }
  [[nodiscard]] std::optional<double> best() const { return best_; }
  /// State that a checkpoint keeps.
  struct State {
    std::optional<double> best;
    int waited = 0;  ///< values since the best one
    bool operator==(const State&) const = default;
  };
  [[nodiscard]] State state() const { return {best_, waited_}; }
  void restore(const State& state) {
    best_ = state.best;
    waited_ = state.waited;
  }

 private:
  [[nodiscard]] bool better(double value, double than) const {
    return section_.mode == "min" ? value < than : value > than;
  }
  EarlyStoppingSection section_;
  std::optional<double> best_;
  int waited_ = 0;  ///< values since the best one
};

}  // namespace trellis::trainer
