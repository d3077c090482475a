#include "trainer/checkpoint/training/adapter_saves.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/checkpoint/lifecycle/save_outcome.h"
#include "trainer/config/adapter_config.h"

namespace trellis::checkpoint {
namespace {

using nlohmann::json;
using trainer::LoraSection;

/// Fields of NxD's LoraConfig; PEFT's names where they differ.
std::string config_text(const LoraSection& lora) {
  json config = {
      {"peft_type", "LORA"},
      {"r", lora.rank},
      {"lora_rank", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", lora.dropout},
      {"use_rslora", lora.use_rslora},
      {"bias", lora.bias},
      {"init_lora_weights", lora.gaussian ? json("gaussian") : json(true)},
      {"target_modules", lora.target_regex.empty() ? json(lora.targets) : json(lora.target_regex)},
      {"modules_to_save", lora.modules_to_save},
      {"save_lora_base", false},
      {"merge_lora", false},
      {"save_lora_config_adapter", false}};
  return config.dump(2) + "\n";
}

}  // namespace

AdapterSaves::AdapterSaves(const trainer::RunConfig& config, runtime::ProcessLink* link)
    : config_(config),
      rule_{config.exp_manager.checkpoints.save_top_k,
            config.exp_manager.checkpoints.mode == "max"},
      folder_(open_storage(config.model.lora->folder)),
      saver_(folder_.shared_storage(), config.world_size(),
             native::SaveOptions{.async = config.exp_manager.checkpoints.async}, link,
             "save of adapters") {
  if (link == nullptr || link->process() == 0) folder_.clean_up();
}

void AdapterSaves::save(const trainer::TrainingState& state, const LiveState& live,
                        const native::FilePlace& place, const native::FileOptions& options,
                        const std::function<native::SaveHead()>& head, const std::string& name,
                        bool last) {
  const LiveState trained = trained_part(state.parameters, {live.model, {}});
  std::vector<ShardedTensor> shards;
  for (const LiveTensor& tensor : trained.model) {
    for (const ShardedPart& part : tensor.parts) shards.push_back(part.tensor);
  }
  saver_.save(state.rank, native::model_jobs(trained, place, options), shards,
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
  folder_.storage().write_text(trainer::kAdapterConfigFile, config_text(*config_.model.lora));
  return head;
}

}  // namespace trellis::checkpoint
