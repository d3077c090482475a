#pragma once

#include <string>

#include "trainer/nxd/lightning.h"

namespace trellis::trainer {

/// Lightning's checkpoint plugin: a training of a NeuronLTModule in the layout of the older
/// interface (legacy_checkpoints.h), which only the same layout of ranks loads.
///
///   <path>/tp_rank_TT_pp_rank_PP…         state_dict, global_step
///   <path>/optimizer/tp_rank_TT_pp_rank_PP…   optimizer_states; with ZeRO-1 of each data-parallel
///                                             rank
///
/// All ranks call each member together.
class NeuronCheckpointIO {
 public:
  /// `save_load_xser`: a file per tensor. `weights_only`: no states of the optimizer.
  explicit NeuronCheckpointIO(bool save_load_xser = true, bool weights_only = false)
      : xser_(save_load_xser), weights_only_(weights_only) {}
  [[nodiscard]] bool save_load_xser() const { return xser_; }
  /// Throws OutputError.
  void save_checkpoint(runtime::RankContext& rank, const NeuronLTModule& module,
                       const std::string& path) const;
  /// Weights, states of the optimizer and the number of steps. Throws ConfigError as legacy::load.
  void load_checkpoint(runtime::RankContext& rank, NeuronLTModule& module,
                       const std::string& path) const;
  /// No error when there is none.
  void remove_checkpoint(runtime::RankContext& rank, const std::string& path) const;

  /// A callback for LightningTrainer that saves "<dirpath>/step_N.ckpt" after every
  /// `every_n_train_steps` steps. `ckpt_path`: the checkpoint from which the training continues;
  /// "": it starts from the beginning. Throws ConfigError below 1 step.
  [[nodiscard]] LightningCallback callback(const std::string& dirpath,
                                           std::int64_t every_n_train_steps,
                                           const std::string& ckpt_path = {}) const;

 private:
  bool xser_, weights_only_;
};

}  // namespace trellis::trainer
