#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/sweep/bounds.h"
#include "analysis/sweep/candidate.h"

/// The fast tier of a sweep: a layout's step from two short simulations of one layer, which many
/// layouts share.
namespace trellis::analysis {

/// An estimate is this close to the simulated step where links are not contended, tested on 20 such
/// layouts.
inline constexpr double kEstimateRange = 0.05;

/// Forward and backward of one micro-batch, seconds.
struct PassSeconds {
  double forward = 0, backward = 0;
};

/// One pipeline stage: what each part of the model takes for a micro-batch, and once in a step.
struct StageProfile {
  PassSeconds layer, embedding, head;  ///< head: with its norm and loss; of every micro-batch
  PassSeconds rest;                    ///< of every micro-batch on any stage: what no part names
  double layer_once = 0,
         ends_once = 0;   ///< in addition to the passes: the first micro-batch differs
  double update = 0;      ///< gradients' norm and the optimizer's update
  double parameters = 0;  ///< that `update` is of: those that a rank owns
};

/// The parts of a layout on which a profile depends: TP, CP, micro-batch size, sequence
/// parallelism, ZeRO-1, copies of heads and recomputation, on one stage. One replica; two where the
/// replicas of the layout are neighbours that share links at the same moments, as they do without a
/// pipeline.
[[nodiscard]] Candidate profile_layout(const Candidate& candidate, int ranks_per_node);
/// The profile whose passes are the least among those that differ from this one in recomputation,
/// replicas and the optimizer only: those add work to the same layers.
[[nodiscard]] Candidate least_layout(const Candidate& profile, int ranks_per_node);
/// Micro-batches of its two simulations.
inline constexpr int kProfileMicroBatches[] = {2, 3};
/// `key=value` overrides of one of them.
[[nodiscard]] std::vector<std::string> profile_overrides(const Candidate& profile,
                                                         int ranks_per_node, int micro_batches);

/// Reads the step reports of the two simulations; waits for DP are left out. `parameters`: those
/// that a rank owns. None when the reports have no attribution.
[[nodiscard]] std::optional<StageProfile> read_profile(const nlohmann::json& two,
                                                       const nlohmann::json& three,
                                                       double parameters);
/// Parameters of pipeline rank `rank` that one of its ranks updates.
[[nodiscard]] double owned_parameters(const trainer::RunConfig& config, int rank);

/// The step of a layout: its stages' passes in the trainer's own schedule, transfers between stages
/// on an idle link, the update of a rank's own parameters, and of the gradients' and weights' way
/// over DP what the last backward and the update do not hide. Picoseconds. Throws ConfigError when
/// the fabric cannot form a group of the layout.
[[nodiscard]] std::int64_t estimate_step(const trainer::RunConfig& config,
                                         const StageProfile& profile, CollectiveTimes& times);

/// The part of estimate_step() that the stages' passes take in the schedule.
[[nodiscard]] std::int64_t estimate_passes(const trainer::RunConfig& config,
                                           const StageProfile& profile, CollectiveTimes& times);

}  // namespace trellis::analysis
