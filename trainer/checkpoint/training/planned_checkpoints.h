#pragma once

#include <vector>

#include "sim/storage/checkpoint_plan.h"
#include "trainer/config/run_config.h"
#include "trainer/loop/training_checkpoints.h"

namespace trellis::checkpoint {

/// Saves nothing and says what RunCheckpoints would save: for simulated runs, whose tensors have
/// shapes and no values. One object for all ranks that run.
class PlannedCheckpoints final : public trainer::TrainingCheckpoints {
 public:
  explicit PlannedCheckpoints(const trainer::RunConfig& config);

  /// Plans the files that each rank of the world writes at a save and reads at a start in the same
  /// layout, after the first step. `represented_by`: for each rank the one that ran in its place;
  /// empty: all ran. The caller adds the time of the saves and their storage.
  [[nodiscard]] sim::CheckpointPlan plan(const std::vector<int>& represented_by) const;

  std::int64_t restore(const trainer::TrainingState&) override { return 0; }
  [[nodiscard]] std::int64_t consumed_samples(std::int64_t step) const override;
  void after_step(const trainer::TrainingState& state, const trainer::StepResult& result) override;
  void at_end(const trainer::TrainingState&, std::int64_t) override {}

 private:
  struct File {
    std::int64_t bytes = 0, tensors = 0, largest_tensor = 0;
    bool shared = false;    ///< every rank of the data-parallel group has the same content
    bool gathered = false;  ///< the first one has it
  };
  struct Rank {
    std::vector<File> files;
    std::int64_t state_bytes = 0, state_tensors = 0;
    /// With gathers_states(): the states that are sent to the first rank.
    sim::StateGather dense, experts;
  };
  [[nodiscard]] Rank rank_of(const trainer::TrainingState& state) const;
  void add_gathers(const std::vector<int>& represented_by, sim::CheckpointPlan& plan) const;
  [[nodiscard]] std::vector<sim::RankFiles> shared_out(const std::vector<const Rank*>& group) const;

  trainer::RunConfig config_;  ///< without save_bf16, which would be work of the simulated device
  bool save_bf16_;
  std::vector<Rank> ranks_;  ///< each writes its own place
};

}  // namespace trellis::checkpoint
