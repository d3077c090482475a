#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/engine/loader.h"
#include "trainer/checkpoint/engine/saver.h"
#include "trainer/checkpoint/state/load_strictness.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/nxd/nxd_optimizer.h"

namespace trellis::trainer {

/// save_checkpoint's arguments: NxD's names and defaults. Members that are not set are not saved.
struct SaveCheckpointArguments {
  std::string tag = {};  ///< folder of this checkpoint; "": "step_N" of the optimizer. One of the
                         ///< same name is replaced
  const NxDModel* model = nullptr;
  const NxDOptimizer* optimizer = nullptr;  ///< of `model`, which is given too
  /// This rank's tensors, in place of the model's and the optimizer's, or without a model: only the
  /// same layout loads them.
  const checkpoint::native::TensorDict* model_dict = nullptr;
  const checkpoint::native::TensorDict* optimizer_dict = nullptr;
  const ParallelState* parallel = nullptr;  ///< of the dicts, where there is no `model`
  const LrScheduler* scheduler = nullptr;
  std::optional<checkpoint::Value> user_content = {};
  int num_workers = 8;    ///< 1 … 32: ranks of a process that write at the same time; with use_xser
                          ///< and async_save it does not count
  bool use_xser = false;  ///< a file per tensor
  bool async_save = false;                 ///< of this call: another thread writes
  std::optional<int> num_kept_ckpts = {};  ///< the newest stay; none, −1: all
  bool zero1_optimizer = false;            ///< each data-parallel rank has its own optimizer_dict
  /// Weights of which the optimizer's files have masters are not written. Needs
  /// mixed_precision_config.use_master_weights_in_ckpt.
  bool avoid_saving_lower_precision_weights = false;
  /// States of ZeRO-1 are one folder of torch.distributed.checkpoint. Needs async_save, and the
  /// weights' data, as in NxD.
  bool use_zero1_dcp = false;
};

/// load_checkpoint's arguments.
struct LoadCheckpointArguments {
  std::string tag = {};  ///< "": the newest complete one
  NxDModel* model = nullptr;
  NxDOptimizer* optimizer = nullptr;
  checkpoint::native::TensorDict* model_dict = nullptr;  ///< values go into tensors of these names
  checkpoint::native::TensorDict* optimizer_dict = nullptr;
  const ParallelState* parallel = nullptr;
  LrScheduler* scheduler = nullptr;
  int num_workers = 8;  ///< ranks of a process that read at the same time
  /// The model and the checkpoint have the same weights. Else what only one has is in the result;
  /// an optimizer's states are never left out.
  bool strict = true;
  /// The checkpoint must have been saved so; false: as the folder says.
  bool use_zero1_dcp = false;
};

struct LoadedCheckpoint {
  std::string tag;
  std::optional<checkpoint::Value> user_content;
  /// Weights that only the model has, and that only the checkpoint has.
  std::vector<std::string> missing_keys, unexpected_keys;
};

/// NxD's save_checkpoint and load_checkpoint over one folder, local or s3://. The ranks of a
/// process share one object, and all ranks of the run call each member together. An exception of
/// one rank is thrown by all ranks, so that a program which catches it can continue. Checkpoints of
/// a model and its optimizer open in every layout of it.
///
///     NxDCheckpoints checkpoints("run/checkpoints", world.world_size);
///     run_ranks(world, [&](RankContext& rank) {
///       …
///       if (checkpoints.has_checkpoint(rank))
///         checkpoints.load_checkpoint(rank, {.model = model.get(), .optimizer = optimizer.get()});
///       checkpoints.save_checkpoint(rank, {.model = …, .optimizer = …, .num_kept_ckpts = 2});
///       checkpoints.finalize_checkpoint(rank);
///     });
class NxDCheckpoints {
 public:
  /// Removes what interrupted saves left in the folder. Throws ConfigError for an address that
  /// cannot be parsed. `link`: the other processes; null: there are none.
  NxDCheckpoints(const std::string& checkpoint_dir, int world_size,
                 runtime::ProcessLink* link = nullptr);

  /// Waits for a save that is under way. Throws ConfigError with every problem of the arguments;
  /// OutputError when this save, or an asynchronous one before it, could not be written.
  void save_checkpoint(runtime::RankContext& rank, const SaveCheckpointArguments& arguments);
  /// Throws ConfigError: no complete checkpoint, or what is missing in it.
  LoadedCheckpoint load_checkpoint(runtime::RankContext& rank,
                                   const LoadCheckpointArguments& arguments);
  /// True if there is a complete checkpoint.
  [[nodiscard]] bool has_checkpoint(runtime::RankContext& rank);
  /// Waits until no save is under way. Throws OutputError when the last save could not be written.
  void finalize_checkpoint(runtime::RankContext& rank);

  [[nodiscard]] checkpoint::Storage& storage() { return folder_.storage(); }

 private:
  [[nodiscard]] checkpoint::native::SaveHead head(const SaveCheckpointArguments& arguments);
  [[nodiscard]] std::optional<checkpoint::KeptCheckpoint> newest_complete();
  void save(runtime::RankContext& rank, const SaveCheckpointArguments& arguments);
  LoadedCheckpoint load(runtime::RankContext& rank, const LoadCheckpointArguments& arguments);
  void throw_failure(runtime::RankContext& rank);
  /// Runs `body` on the first rank of this process, between two barriers of its ranks.
  void once(runtime::RankContext& rank, const std::function<void()>& body);
  void load_model(runtime::RankContext& rank, const LoadCheckpointArguments& arguments,
                  LoadedCheckpoint& loaded);

  checkpoint::CheckpointFolder folder_;
  checkpoint::native::Saver saver_;  ///< after folder_, which its thread uses
  checkpoint::NameUnion names_;
  std::unique_ptr<checkpoint::native::Loader> loader_;
  std::string failure_;  ///< why the last save is incomplete; "": it is not
};

}  // namespace trellis::trainer
