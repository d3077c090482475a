#pragma once

#include <cstdint>
#include <string>

#include "trainer/checkpoint/engine/saver.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/loop/training_checkpoints.h"

namespace trellis::checkpoint {

/// The adapters of a training alone, in NxD's layout, next to its checkpoints: lora_save_dir. With
/// save_lora_base the base's weights, too; with merge_lora these with the adapters in them.
///
///   adapter_config.json                             rank, scale, targets; as PEFT reads it, too
///   <tag>/model/dp_rank_00_tp_rank_TT_pp_rank_PP.pt  what is saved, by rank
///   <tag>/manifest.json                             ours: any layout opens it
///   <tag>/checkpoint, <tag>/done
class AdapterSaves {
 public:
  /// Removes what interrupted saves left. REQUIRES: lora_save_dir, without load_lora_from_ckpt.
  AdapterSaves(const trainer::RunConfig& config, runtime::ProcessLink* link,
               const RunIdentity& self);

  /// Collective. `head`: of the checkpoint, without a tag; called on rank 0. `name`: of the
  /// checkpoint.
  void save(const trainer::TrainingState& state, const LiveState& live,
            const native::FilePlace& place, const native::FileOptions& options,
            const std::function<native::SaveHead()>& head, const std::string& name, bool last);
  /// Waits for the save under way, as Saver::wait(). Called by a process's first rank.
  void wait() { saver_.wait(); }
  /// Why the last one could not be written; "": it was. Called on rank 0, after wait().
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  [[nodiscard]] native::SaveHead own_head(native::SaveHead head, const std::string& name,
                                          bool last);
  const trainer::RunConfig& config_;
  KeepRule rule_;
  CheckpointFolder folder_;
  std::string failure_;
  native::Saver saver_;  ///< after folder_, which its thread uses
};

}  // namespace trellis::checkpoint
