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
#include "trainer/config/run_config_file.h"

namespace trellis::analysis {

/// Estimates open rows when a sweep comes to them: most are slower by their closed bounds than what
/// has been simulated by then, and need none. Rows share the two short simulations of a profile.
class Estimator {
 public:
  Estimator(const SweepSpace& space, std::vector<SweepRow>& rows);

  enum class Need {
    kNothing,  ///< the row has its estimate, or there is none: mixtures of experts, fully sharded
               ///< weights, profiles that cannot be simulated
    kAnswers,  ///< of its profile's simulations; the row waits for them
    kEstimate
  };
  [[nodiscard]] Need need(const SweepRow& row) const;

  /// The row waits for its profile. Its simulations become questions, unless they are already.
  void wait(SweepRow& row);
  struct Question {
    std::size_t key = 0;
    StepQuestion step;
  };
  /// A simulation that no one has begun; none: all are.
  [[nodiscard]] std::optional<Question> next_question();
  /// Rows that do not wait any longer.
  std::vector<SweepRow*> answer(const ChildProcesses::Result& result);

  /// Fills estimate_ps and raises bound_ps to the estimate's lower end. REQUIRES: need() is
  /// kEstimate.
  void estimate(SweepRow& row);

  /// Rows whose closed bounds exceed the time to beat need no estimate. Which of them have one
  /// depends on which simulations ended first: they lose it.
  void forget_needless(std::size_t top);

 private:
  struct Profile {
    Candidate layout;
    std::array<std::string, 2> reports = {};  ///< of its simulations; empty: not there, or failed
    std::size_t answered = 0;
    std::vector<SweepRow*> waiting;
    std::optional<StageProfile> times;
  };
  [[nodiscard]] std::vector<std::string> overrides(const Profile& profile, int micro_batches) const;
  void read(Profile& profile) const;
  TimedMachine& machine_of(int nodes, const trainer::RunConfig& config);

  const SweepSpace& space_;
  std::vector<SweepRow>& rows_;
  trainer::RunConfigFile file_;
  bool mixture_ = false;
  std::map<Candidate, std::size_t> known_;
  std::vector<Profile> profiles_;
  std::size_t asked_ = 0;  ///< simulations that have begun: two of each profile, in this order
  std::map<std::size_t, std::int64_t> closed_bounds_;      ///< of estimated rows, by index in rows_
  std::map<int, std::unique_ptr<TimedMachine>> machines_;  ///< by number of nodes
};

}  // namespace trellis::analysis
