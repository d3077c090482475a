#include "trainer/checkpoint/training/adapter_saves.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/checkpoint/state/merged_weights.h"
#include "trainer/checkpoint/training/lora_config.h"
#include "trainer/config/sections/adapter_config.h"
#include "trainer/files/checkpoint/lifecycle/save_outcome.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::checkpoint {
namespace {

/// The weights that are saved in the folder.
LiveState saved_part(const trainer::TrainingState& state, const LiveState& live,
                     const trainer::LoraSection& lora) {
  if (lora.merge) return {merged_weights(live.model, lora.scale()), {}};
  if (lora.save_base) return {live.model, {}};
  return trained_part(state.parameters, {live.model, {}});
}

}  // namespace

AdapterSaves::AdapterSaves(const trainer::RunConfig& config, runtime::ProcessLink* link,
                           const RunIdentity& self)
    : config_(config),
      rule_{config.exp_manager.checkpoints.save_top_k,
            config.exp_manager.checkpoints.mode == "max"},
      folder_(open_storage(config.model.lora->folder), kCheckpointSuffix, self),
      saver_(folder_.shared_storage(), config.world_size(),
             native::SaveOptions{.async = config.exp_manager.checkpoints.async}, link,
             "save of adapters") {
  if (link == nullptr || link->process() == 0) folder_.clean_up();
}

void AdapterSaves::save(const trainer::TrainingState& state, const LiveState& live,
                        const native::FilePlace& place, const native::FileOptions& options,
                        const std::function<native::SaveHead()>& head, const std::string& name,
                        bool last) {
  const LiveState saved = saved_part(state, live, *config_.model.lora);
  std::vector<ShardedTensor> shards;
  for (const LiveTensor& tensor : saved.model) {
    for (const ShardedPart& part : tensor.parts) shards.push_back(part.tensor);
  }
  saver_.save(state.rank, native::model_jobs(saved, place, options), shards,
              [&] { return own_head(head(), name, last); });
}

native::SaveHead AdapterSaves::own_head(native::SaveHead head, const std::string& name, bool last) {
  const CheckpointFolder::FreeTag free = folder_.free_tag(name, last);
  head.tag = free.tag;
  head.manifest.sequence = folder_.next_sequence();
  const KeptCheckpoint saved{head.tag, head.manifest.step, head.manifest.sequence,
                             head.manifest.metric};
  head.complete = [this, replaced = free.replaced, saved] {
    failure_.clear();
    keep_saved(folder_, saved, replaced, rule_);
  };
  head.failed = [this, saved](const std::string& reason) {
    failure_ = reason;
    drop_failed(folder_, saved, reason);
  };
  folder_.storage().write_text(trainer::kAdapterConfigFile,
                               lora_config(*config_.model.lora).dump(2) + "\n");
  return head;
}

}  // namespace trellis::checkpoint
