#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/sweep/child_processes.h"
#include "analysis/sweep/estimate.h"
#include "analysis/sweep/row.h"
#include "analysis/sweep/space.h"
#include "trainer/config/load/load_run_config.h"

namespace trellis::analysis {

/// Raises the bounds of open rows when a sweep comes to them, in two steps: by the passes of the
/// layout without recomputation, which many rows share, then by the row's own estimate. Most rows
/// are slower by the first than what has been simulated by then, and need no more. A profile takes
/// two short simulations.
class Estimator {
 public:
  Estimator(const SweepSpace& space, std::vector<SweepRow>& rows);

  enum class Step {
    kWaits,    ///< for a profile's simulations; answer() gives the row back
    kRaised,   ///< bound_ps is higher, or another step follows
    kNothing,  ///< all is done, or there are no estimates: mixtures of experts, fully sharded
               ///< weights, profiles that cannot be simulated
  };
  [[nodiscard]] Step advance(SweepRow& row);

  struct Question {
    std::size_t key = 0;
    StepQuestion step;
  };
  /// A simulation that no one has begun; none: all are.
  [[nodiscard]] std::optional<Question> next_question();
  /// Rows that do not wait any longer.
  std::vector<SweepRow*> answer(const ChildProcesses::Result& result);

  /// Rows that an earlier bound keeps from being among the best lose what came later: whether they
  /// have it depends on which simulations ended first.
  void forget_needless(std::size_t top);

 private:
  struct Profile {
    Candidate layout;
    std::array<std::string, 2> reports = {};  ///< of its simulations; empty: not there, or failed
    std::size_t answered = 0;
    std::vector<SweepRow*> waiting;
    std::optional<StageProfile> times;
  };
  /// Bounds of a row before each of the two steps.
  using Bounds = std::vector<std::int64_t>;

  [[nodiscard]] std::vector<std::string> overrides(const Profile& profile, int micro_batches) const;
  Profile& profile_of(const Candidate& layout);
  void read(Profile& profile) const;
  TimedMachine& machine_of(int nodes, const trainer::RunConfig& config);
  void raise(SweepRow& row, const StageProfile& times, bool own);

  const SweepSpace& space_;
  std::vector<SweepRow>& rows_;
  trainer::RunConfigFile file_;
  bool mixture_ = false;
  std::map<Candidate, std::size_t> known_;
  std::vector<Profile> profiles_;
  std::size_t asked_ = 0;  ///< simulations that have begun: two of each profile, in this order
  std::map<std::size_t, Bounds> bounds_;                   ///< by index in rows_
  std::map<int, std::unique_ptr<TimedMachine>> machines_;  ///< by number of nodes
};

}  // namespace trellis::analysis
