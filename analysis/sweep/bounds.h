#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/sweep/stage_work.h"
#include "sim/sim.h"
#include "trainer/config/run_config.h"

/// Closed bounds of one training step: no simulation of it is faster or takes less memory. Work
/// that the model of the machine could still overlap counts once; work that it adds (launches,
/// vector work, activations' traffic, transfers between stages, contended links) counts nothing.
namespace trellis::analysis {

/// Times of collectives on an idle machine, remembered by group and size. Rank r runs on core r.
/// Calls may come from any thread.
class CollectiveTimes {
 public:
  explicit CollectiveTimes(const sim::SystemConfig& system) : system_(system) {}
  /// One collective of `size` bytes (as sim::CollectiveRequest counts) over `members` ranks that
  /// lie at a distance of `stride`; 0 for one member. Throws ConfigError when the fabric cannot
  /// form the group.
  [[nodiscard]] double seconds(sim::CollectiveKind kind, int members, int stride,
                               std::int64_t size);
  /// For how long the group's busiest link, DMA engine or memory works for a byte, by the algorithm
  /// and size at which that is least.
  [[nodiscard]] double busy_seconds_per_byte(sim::CollectiveKind kind, int members, int stride);

 private:
  using Key = std::tuple<sim::CollectiveKind, int, int, std::int64_t>;
  const sim::CollectiveTiming& timing(const Key& key);
  const sim::SystemConfig& system_;
  std::mutex mutex_;
  std::map<Key, sim::CollectiveTiming> known_;
};

/// One kind of machine, and its collectives.
struct TimedMachine {
  sim::SystemConfig system;
  CollectiveTimes times{system};
  explicit TimedMachine(sim::SystemConfig loaded) : system(std::move(loaded)) {}
  TimedMachine(const TimedMachine&) = delete;
  TimedMachine& operator=(const TimedMachine&) = delete;
};

/// A lower bound of the step's time and what it is made of.
struct StepBound {
  std::int64_t step_ps = 0;
  double pipeline_s = 0;  ///< forwards and backwards of the slowest path, the bubble in it
  double bubble_s = 0;    ///< of it: before a stage's first micro-batch and after its last one
  double optimizer_s =
      0;  ///< after the last backward: states through HBM, or the gather of the updated weights
  double gradients_s =
      0;                ///< the gradients' way through the busiest link; hidden by everything else
  std::string largest;  ///< "compute", "HBM", "TP comm", "bubble", "optimizer" or "DP comm"
};

/// pipeline = max over ranks p of [Σ_{j<p} (f_j + b_j) + M · Σ_chunks (f + b)], the fill and drain
/// of any schedule whose stages follow each other;
///   f = max(FLOPs / peak, weights / HBM) + its sums over TP, which are between dependent
///     products (step-time-mechanisms.md §4: fully exposed);
///   b = max(FLOPs / peak, weights / HBM, products of input gradients / peak + their sums over
///     TP): weight gradients hide the rest.
/// Peaks: 128 × 128 multiply-adds per cycle of the Tensor engine's clock; the lower of the stack's
/// bandwidth and what the DMA engines move. Weights: read once per pass except for what SBUF can
/// keep. optimizer, when gradients are clipped (their norm needs all of them): the higher of states
/// and gradients through HBM (each of AdamW's read
///   and written once) and, with ZeRO-1, the gather of the weights through the busiest link.
/// gradients: reduce-scatter (ZeRO-1) or all-reduce over DP × CP through the busiest link; without
/// those of experts where there is EP.
/// step = max(pipeline + optimizer, gradients). Throws ConfigError when the fabric cannot form a
/// group of the layout.
[[nodiscard]] StepBound bound_step(const trainer::RunConfig& config,
                                   const sim::SystemConfig& system, CollectiveTimes& times);

/// Bytes of the fullest rank: weights, gradients and optimizer states (AdamW's two moments and fp32
/// masters; nothing for other optimizers), and the larger of two amounts: what the passes keep,
/// and, where each rank updates all of its weights (no ZeRO-1, or one replica), their new values,
/// which are written together. Of the tensors that passes hold for a moment these count: the
/// logits, the output of a stage, a layer that is computed again and the first gradients of a
/// backward. The others do not count, nor does the rounding of sizes. (It is also a bound for
/// published software that is estimated from what this trainer holds,
/// traces/report/software_memory.h: that estimate is higher.)
[[nodiscard]] std::int64_t bound_memory(const trainer::RunConfig& config);

/// The most activations that pipeline rank `rank` holds in a step, by the trainer's own schedule: a
/// forward adds what its stage saves, the stage's backward releases it. Bytes.
[[nodiscard]] std::int64_t activation_bytes(const trainer::RunConfig& config,
                                            const std::vector<StageWork>& stages, int rank);

}  // namespace trellis::analysis
