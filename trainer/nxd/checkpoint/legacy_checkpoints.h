#pragma once

#include <map>
#include <string>
#include <variant>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/files/checkpoint/storage/storage.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/nxd/nxd_optimizer.h"

/// NxD's older interface, parallel_layers.save and load: a file or folder per rank, and nothing
/// that says whether all are there. A file is complete or absent; new programs use NxDCheckpoints.
/// All ranks call each function together. Files are read without running anything, so
/// `weights_only` is always on.
namespace trellis::trainer::legacy {

/// A rank's dict: state dicts of tensors, such as "model", and other values.
struct Checkpoint {
  std::map<std::string, checkpoint::native::TensorDict> states;
  std::map<std::string, checkpoint::Value> values = {};
};

struct SaveArguments {
  bool save_serially = true;    ///< one rank after the other
  bool save_xser = false;       ///< a file per tensor
  bool down_cast_bf16 = false;  ///< floating-point tensors are rounded
  bool master_dp_only = true;   ///< data-parallel rank 0 writes; else each, under its own name
};
/// Throws OutputError.
void save(runtime::RankContext& rank, const ParallelState& parallel, const Checkpoint& checkpoint,
          checkpoint::Storage& output_dir, const SaveArguments& arguments = {});

struct LoadArguments {
  /// Filled in place, from a state_dict() that was saved.
  std::variant<std::monostate, NxDModel*, NxDOptimizer*> model_or_optimizer = {};
  NxDModel* model = nullptr;        ///< the same, of a model
  std::string model_key = "model";  ///< where its state dict is; "": the file is one
  bool load_xser = false;           ///< as it was saved
  /// Else the folder has one file of whole weights, of which each rank takes its part. Needs a
  /// model, whose names are those of the file.
  bool sharded = true;
  bool strict = true;          ///< the model and the file have the same weights
  bool master_dp_only = true;  ///< as it was saved
};
/// Throws ConfigError: a file that is missing, or of the other kind, and every name and size that
/// does not fit.
Checkpoint load(runtime::RankContext& rank, const ParallelState& parallel,
                const std::shared_ptr<checkpoint::Storage>& output_dir,
                const LoadArguments& arguments = {});

/// NeuronZero1Optimizer's: "optim.dp_rank_DD.tp_rank_TT". Throws ConfigError with pipeline stages,
/// which the names do not have.
void save_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             const NxDOptimizer& optimizer, checkpoint::Storage& output_dir,
                             bool save_serially = true);
/// REQUIRES: the same layout.
void load_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             NxDOptimizer& optimizer,
                             const std::shared_ptr<checkpoint::Storage>& output_dir,
                             int num_workers_per_step = 8);
/// The same of an optimizer that the program made itself. `lr`: for the file.
void save_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             const NeuronZero1Optimizer& optimizer, double lr,
                             checkpoint::Storage& output_dir, bool save_serially = true);
void load_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             NeuronZero1Optimizer& optimizer,
                             const std::shared_ptr<checkpoint::Storage>& output_dir,
                             int num_workers_per_step = 8);

}  // namespace trellis::trainer::legacy
