#include "trainer/config/load/run_changes.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/yaml/yaml.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/config/model_properties.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::trainer {
namespace {

using FlatSettings = std::map<std::string, std::string>;

/// Keys, and sections with a point at their end, that say where ranks, files and messages are, how
/// the same numbers are computed, how long a run lasts, and what a model starts with.
constexpr std::array<std::string_view, 53> kSilent = {
    "name",
    "model_source",
    "software",
    "instance",
    "seed",  // said when the state is restored
    "bucket_size_collectives",
    "distributed_strategy.",
    "exp_manager.",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.lnc",
    "trainer.sequential_move_factor",
    "trainer.log_every_n_steps",
    "trainer.enable_progress_bar",
    "trainer.track_grad_norm",
    "trainer.num_sanity_val_steps",
    "trainer.limit_val_batches",
    "trainer.limit_test_batches",
    "trainer.val_check_interval",
    "trainer.check_val_every_n_epoch",
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.max_time",
    "trainer.min_steps",
    "trainer.min_epochs",
    "data.micro_batch_size",
    "data.num_workers",
    "data.index_mapping_dir",
    "data.val_dir",
    "data.test_dir",
    "data.validation_drop_last",
    "model.vocab_size",
    "model.make_vocab_size_divisible_by",
    "model.model_type",
    "model.torch_dtype",
    "model.init_method_std",
    "model.use_scaled_init_method",
    "model.qkv_linear",
    "model.fuse_qkv",
    "model.fuse_gate_up",
    "model.fusions.",
    "model.pipeline_cuts",
    "model.activations_checkpoint_granularity",
    "model.activations_checkpoint_recompute",
    "model.weight_init_only",
    "model.save_logits",
    "model.position_freq_base",  // of Megatron models; the model's properties have it
    "model.optim.sched.max_steps",
    "model_alignment_strategy.peft.lora_save_dir",
    "model_alignment_strategy.peft.lora_load_tag",
    "model_alignment_strategy.peft.load_lora_from_ckpt",
    "model_alignment_strategy.peft.save_lora_base",
    "model_alignment_strategy.peft.merge_lora",
};

bool is_silent(const std::string& key) {
  const bool is_listed = std::ranges::any_of(kSilent, [&](std::string_view each) {
    return each.ends_with('.') ? key.starts_with(each) : key == each;
  });
  return (is_listed && !key.starts_with("exp_manager.ema.")) || key.starts_with("model.dist_ckpt_");
}

/// Keys that act.
std::set<std::string> acting_keys() {
  std::set<std::string> keys;
  for (const KeyGroup& group : key_groups()) {
    if (group.use != KeyUse::kSupported) continue;
    const std::string section(group.section);
    for (const KnownKey& known : known_keys_of(group.section)) {
      if (known.group->use == KeyUse::kSupported)
        keys.insert(section.empty() ? known.key : section + "." + known.key);
    }
  }
  return keys;
}

void flatten_settings(const YamlMap& map, const std::string& prefix, FlatSettings& settings) {
  for (const std::string& key : map.keys()) {
    if (map.is_map(key)) {
      flatten_settings(map.map(key), prefix + key + ".", settings);
    } else {
      settings[prefix + key] = map.flow_text(key);
    }
  }
}

FlatSettings settings_of(const RunConfig& config) {
  FlatSettings settings;
  flatten_settings(YamlDocument::parse(config.resolved_yaml, "configuration").root(), "", settings);
  return settings;
}

std::string setting_value(const FlatSettings& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() || found->second == "null" ? "none" : found->second;
}

/// A schedule that ends elsewhere: the first step from `step` on with another rate.
void add_schedule(const RunConfig& saved, const RunConfig& now, std::int64_t step,
                  std::vector<RunChange>& changes) {
  const std::int64_t before = schedule_steps(saved.model.optim, saved.trainer.max_steps),
                     after = schedule_steps(now.model.optim, now.trainer.max_steps);
  if (before == after || !saved.model.optim.sched || !now.model.optim.sched) return;
  constexpr std::int64_t kSamples = 64;
  const std::int64_t stride =
      std::max<std::int64_t>(1, (std::min(before, after) - step) / kSamples);
  for (std::int64_t at = step; at <= std::max(step, std::min(before, after)); at += stride) {
    const double was = learning_rate(now.model.optim, before, at, at),
                 is = learning_rate(now.model.optim, after, at, at);
    if (was == is) continue;
    const auto text = [&](std::int64_t steps, double lr) {
      return fmt::format("{} steps long (lr {:.4g} at step {})", steps, lr, at + 1);
    };
    changes.push_back({"model.optim.sched", text(before, was), text(after, is)});
    return;
  }
}

}  // namespace

std::vector<RunChange> run_changes(const RunConfig& saved, const RunConfig& now,
                                   std::int64_t step) {
  const FlatSettings before = settings_of(saved), after = settings_of(now);
  std::set<std::string> keys = acting_keys();
  for (const ModelProperty& property : model_properties(now.model)) keys.erase(property.key);
  // A table that is learned is the model's; else it is how far positions may go.
  keys.insert("model.max_position_embeddings");
  std::vector<RunChange> changes;
  for (const std::string& key : keys) {
    if (is_silent(key)) continue;
    std::string was = setting_value(before, key), is = setting_value(after, key);
    if (!is_same_value(was, is)) changes.push_back({key, std::move(was), std::move(is)});
  }
  add_schedule(saved, now, step, changes);
  return changes;
}

}  // namespace trellis::trainer
