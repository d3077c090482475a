#include "trainer/nxd/checkpoint/checkpoint_io.h"

#include "base/error.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/nxd/checkpoint/legacy_checkpoints.h"

namespace trellis::trainer {
namespace {

constexpr const char *kWeights = "state_dict", *kStates = "optimizer_states",
                     *kSteps = "global_step", *kFolder = "optimizer";

/// The folder of the optimizer's files in the checkpoint's.
std::shared_ptr<checkpoint::Storage> states_storage(const std::string& path) {
  const std::size_t query = path.starts_with("s3://") ? path.find('?') : std::string::npos;
  return checkpoint::open_storage(checkpoint::join_path(path.substr(0, query), kFolder) +
                                  (query == std::string::npos ? "" : path.substr(query)));
}

bool is_of_first_only(const NeuronLTModule& module) {
  return !*module.model().config().optimizer_config.zero_one_enabled;
}

}  // namespace

void NeuronCheckpointIO::save_checkpoint(runtime::RankContext& rank, const NeuronLTModule& module,
                                         const std::string& path) const {
  const NxDModel& model = module.model();
  const auto storage = checkpoint::open_storage(path);
  legacy::save(rank, model.parallel(),
               {.states = {{kWeights, model.state_dict()}},
                .values = {{kSteps, checkpoint::Value(module.optimizer().steps())}}},
               *storage, {.save_xser = xser_});
  if (weights_only_) return;
  legacy::save(rank, model.parallel(), {.states = {{kStates, module.optimizer().state_dict()}}},
               *states_storage(path),
               {.save_xser = xser_, .master_dp_only = is_of_first_only(module)});
}

void NeuronCheckpointIO::load_checkpoint(runtime::RankContext& rank, NeuronLTModule& module,
                                         const std::string& path) const {
  NxDModel& model = module.model();
  const legacy::Checkpoint loaded =
      legacy::load(rank, model.parallel(), checkpoint::open_storage(path),
                   {.model_or_optimizer = &model, .model_key = kWeights, .load_xser = xser_});
  const auto steps = loaded.values.find(kSteps);
  if (steps == loaded.values.end())
    throw ConfigError(path + ": expected global_step, found none: another program saved it");
  if (weights_only_) return module.optimizer().continue_after(steps->second.as_int());
  (void)legacy::load(rank, model.parallel(), states_storage(path),
                     {.model_or_optimizer = &module.optimizer(),
                      .model_key = kStates,
                      .load_xser = xser_,
                      .master_dp_only = is_of_first_only(module)});
}

void NeuronCheckpointIO::remove_checkpoint(runtime::RankContext& rank,
                                           const std::string& path) const {
  rank.host_barrier(checkpoint::kStorageTimeout);
  if (rank.rank() == 0) {
    const checkpoint::Place place = checkpoint::open_place(path);
    place.storage->remove_directory(place.path);
  }
  rank.host_barrier(checkpoint::kStorageTimeout);
}

LightningCallback NeuronCheckpointIO::callback(const std::string& dirpath,
                                               std::int64_t every_n_train_steps,
                                               const std::string& ckpt_path) const {
  if (every_n_train_steps < 1)
    throw ConfigError("every_n_train_steps: expected 1 or more, got " +
                      std::to_string(every_n_train_steps));
  LightningCallback callback;
  callback.on_fit_start = [io = *this, ckpt_path](runtime::RankContext& rank,
                                                  NeuronLTModule& module) {
    if (!ckpt_path.empty()) io.load_checkpoint(rank, module, ckpt_path);
  };
  callback.on_train_step_end = [io = *this, dirpath, every_n_train_steps](
                                   runtime::RankContext& rank, NeuronLTModule& module,
                                   const LTStep& step) {
    if (step.step % every_n_train_steps == 0)
      io.save_checkpoint(rank, module, dirpath + "/step_" + std::to_string(step.step) + ".ckpt");
  };
  return callback;
}

}  // namespace trellis::trainer
