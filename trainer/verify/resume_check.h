#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/world.h"
#include "trainer/requests/resume_check_request.h"
#include "trainer/verify/training_record.h"

namespace trellis::trainer {

/// How near a number of the resumed run in another layout is to the uninterrupted run's.
struct Closeness {
  std::string what;  ///< "loss of step 14", "state exp_avg of model.norm.weight"
  double error = 0;  ///< relative, by the L2 norm; of a tensor that nearly vanishes: of its share,
                     ///< see compare()
};

struct ResumeCheckResult {
  bool exact =
      true;  ///< the same layout goes on: every bit was compared; else samples and closeness
  std::int64_t compared = 0;                   ///< hashes and numbers, or numbers and tensors
  std::map<std::int64_t, ContentHash> hashes;  ///< of everything, by step, uninterrupted run
  std::optional<RecordDifference> first;       ///< difference
  double tolerance = 0;                        ///< of closeness
  std::optional<Closeness> worst;              ///< none when `exact`
  [[nodiscard]] bool equal() const { return !first && (!worst || worst->error <= tolerance); }
};

/// Where the ranks of a configuration live; may change its hardware.
using ResumeWorld = std::function<runtime::WorldOptions(RunConfig&)>;
/// Called after each step: what is run ("uninterrupted", "to the cut after step 3", …), and how
/// many steps of how many are done in all.
using ResumeProgress =
    std::function<void(const std::string& run, std::int64_t done, std::int64_t of)>;

/// Trains `steps` steps without interruption, and once more with a cut at each of `cuts`: there the
/// run is stopped as by SIGTERM, its checkpoint is saved, everything is destroyed, and another run
/// resumes. Each step, and the state with which each run goes on, is compared with the
/// uninterrupted run: weights, masters, optimizer states, moving averages, step, schedule, random
/// state, samples, callbacks, losses and norms, all bit by bit. When `after_cut` changes the
/// layout, the samples of each global batch are compared place by place, and losses and the last
/// weights and states by their relative error; its bound without `tolerance` is 1e-10 in fp64, 1e-4
/// in fp32, else 0.05. Throws ConfigError for cuts that are not in the run, another global batch
/// after a cut, a folder that holds checkpoints.
[[nodiscard]] ResumeCheckResult resume_check(const ResumeCheckRequest& request,
                                             const ResumeWorld& world,
                                             const ResumeProgress& progress);

}  // namespace trellis::trainer
