#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "analysis/export/come_back.h"
#include "analysis/import/hugging_face_parts.h"
#include "analysis/import/key_words.h"
#include "analysis/import/sources.h"

namespace trellis::analysis {
namespace {

namespace hf = hugging_face;
using nlohmann::ordered_json;
using Settings = ResolvedSettings;

/// Fields of NeuronTrainingArguments of optimum-neuron 0.4.5 that a row of the import moves.
constexpr std::string_view kMovedFields =
    "learning_rate weight_decay dataloader_num_workers save_only_model tensor_parallel_size "
    "pipeline_parallel_size zero_1 use_xser async_save fuse_qkv "
    "optimizer_save_master_weights_in_ckpt";

void add_moved(const Settings& s, ordered_json& out) {
  for_each_word(kMovedFields, [&](std::string_view name) {
    const hf::Row* row = hf::find_row(hf::argument_rows(), name);
    if (row == nullptr) return;
    const std::string key(name);
    if (row->use == hf::RowUse::kBoolean) {
      if (!s.text(row->text).empty()) out[key] = s.is(row->text, "true");
    } else if (row->use == hf::RowUse::kInteger) {
      if (const auto value = s.integer(row->text)) out[key] = *value;
    } else if (const auto value = s.number(row->text)) {
      out[key] = *value;
    }
  });
}

void add_batches(const Settings& s, ordered_json& out) {
  const trainer::RunConfig& config = s.config();
  const int cuts = config.num_microbatches();
  const bool staged = config.pp() > 1;
  // With a pipeline the batch of a device holds all its micro-batches.
  out["per_device_train_batch_size"] = config.data.micro_batch_size * (staged ? cuts : 1);
  out["gradient_accumulation_steps"] = staged ? 1 : cuts;
  if (staged) out["pipeline_parallel_num_microbatches"] = cuts;
  out["disable_sequence_parallel"] = !config.distributed_strategy.sequence_parallel;
  if (config.distributed_strategy.kv_replicator > 1)
    out["kv_size_multiplier"] = config.distributed_strategy.kv_replicator;
  out["num_local_ranks_per_step"] = config.trainer.sequential_move_factor;
}

void add_length(const Settings& s, ordered_json& out) {
  const trainer::TrainerSection& trainer = s.config().trainer;
  out["max_steps"] = trainer.max_steps;
  if (trainer.max_steps < 1) out["num_train_epochs"] = trainer.max_epochs;
  out["max_grad_norm"] = trainer.gradient_clip_val.value_or(0);
  out["logging_steps"] = trainer.log_every_n_steps;
  const bool validates = trainer.val_check_interval && trainer.val_check_interval->count &&
                         !trainer.check_val_every_n_epoch &&
                         !(trainer.limit_val_batches && trainer.limit_val_batches->is_zero());
  out["eval_strategy"] = validates ? "steps" : "no";
  if (validates) out["eval_steps"] = *trainer.val_check_interval->count;
  out["seed"] = s.config().seed;
}

void add_optimizer(const Settings& s, ordered_json& out) {
  const trainer::OptimSection& optim = s.config().model.optim;
  static const std::map<std::string, std::string> kOptimizers = {
      {"adamw", "adamw_torch"},
      {"adamw_fp32OptState", "adamw_torch"},
      {"sgd", "sgd"},
      {"adagrad", "adagrad"},
      {"rmsprop", "rmsprop"}};
  if (const auto name = kOptimizers.find(optim.name); name != kOptimizers.end())
    out["optim"] = name->second;
  if (optim.name.starts_with("adam")) {
    out["adam_beta1"] = optim.beta1.value();
    out["adam_beta2"] = optim.beta2.value();
    out["adam_epsilon"] = optim.eps.value();
  }
  static const std::map<std::string, std::string> kSchedules = {
      {"CosineAnnealing", "cosine"},
      {"LinearAnnealingWithWarmUp", "linear"},
      {"WarmupPolicy", "constant_with_warmup"},
      {"InverseSquareRootAnnealing", "inverse_sqrt"}};
  if (!optim.sched) {
    out["lr_scheduler_type"] = "constant";
    return;
  }
  if (const auto name = kSchedules.find(optim.sched->name); name != kSchedules.end())
    out["lr_scheduler_type"] = name->second;
  if (optim.sched->warmup_steps > 0) out["warmup_steps"] = optim.sched->warmup_steps;
}

void add_precision(const Settings& s, ordered_json& out) {
  const trainer::PrecisionSection& precision = s.config().precision;
  const bool bf16 = precision.type != "fp32" && precision.type != "fp64";
  out["bf16"] = bf16;
  if (bf16) {
    out["use_autocast"] = precision.autocast;
    out["stochastic_rounding_enabled"] = precision.stochastic_rounding;
    out["optimizer_use_master_weights"] = precision.master_weights;
    out["optimizer_use_fp32_grad_acc"] = precision.fp32_grad_acc;
  }
  out["gradient_checkpointing"] = s.config().model.recompute == trainer::Recompute::kFull;
}

void add_files(const Settings& s, ordered_json& out) {
  const trainer::ExpManagerSection& files = s.config().exp_manager;
  const trainer::CheckpointSection& saved = files.checkpoints;
  out["output_dir"] = files.exp_dir;
  out["run_name"] = files.name;
  out["report_to"] = files.create_tensorboard_logger ? "tensorboard" : "none";
  const bool steps = saved.create && saved.every_n_train_steps.has_value();
  out["save_strategy"] = !saved.create ? "no" : steps ? "steps" : "epoch";
  if (steps) out["save_steps"] = *saved.every_n_train_steps;
  if (saved.create && saved.save_top_k > 0) out["save_total_limit"] = saved.save_top_k;
  if (!saved.resume_from_checkpoint.empty())
    out["resume_from_checkpoint"] = saved.resume_from_checkpoint;
}

/// Keys that these functions decide, in addition to those of moved rows.
constexpr std::string_view kDecided =
    "data.micro_batch_size data.global_batch_size distributed_strategy.sequence_parallel "
    "distributed_strategy.kv_replicator trainer.sequential_move_factor trainer.max_steps "
    "trainer.max_epochs trainer.gradient_clip_val trainer.log_every_n_steps "
    "trainer.val_check_interval trainer.check_val_every_n_epoch seed model.optim.name "
    "model.optim.betas model.optim.eps model.optim.sched.name model.optim.sched.warmup_steps "
    "precision.type model.activations_checkpoint_granularity exp_manager.exp_dir "
    "exp_manager.create_tensorboard_logger exp_manager.create_checkpoint_callback "
    "exp_manager.checkpoint_callback_params.every_n_train_steps "
    "exp_manager.checkpoint_callback_params.save_top_k "
    "exp_manager.checkpoint_callback_params.monitor exp_manager.checkpoint_callback_params.mode "
    "exp_manager.resume_from_checkpoint";

bool has_field(std::string_view key) {
  bool found = false;
  for_each_word(kDecided, [&](std::string_view each) { found |= each == key; });
  for_each_word(kMovedFields, [&](std::string_view name) {
    const hf::Row* row = hf::find_row(hf::argument_rows(), name);
    found |= row != nullptr && row->text == key;
  });
  return found;
}

std::string why(std::string_view key) {
  if (key == "trainer.devices" || key == "trainer.num_nodes")
    return "the launcher says it: torchrun --nproc_per_node --nnodes";
  if (key.starts_with("model.") && !key.starts_with("model.optim.") &&
      !key.starts_with("model.activations_") && !key.starts_with("model.fusions."))
    return "the model's folder says it: `trellis checkpoint export-hf` writes one with config.json";
  if (key.starts_with("data.")) return "a script gives the trainer its data set and tokenizer";
  return "";
}

}  // namespace

ExportedConfig export_optimum_neuron(const std::string& file,
                                     const std::vector<std::string>& overrides) {
  const ResolvedSettings settings = ResolvedSettings::of_file(file, overrides);
  ordered_json arguments;
  add_files(settings, arguments);
  add_batches(settings, arguments);
  add_length(settings, arguments);
  add_moved(settings, arguments);
  add_optimizer(settings, arguments);
  add_precision(settings, arguments);
  ExportedConfig exported{.text = arguments.dump(2) + "\n", .left_out = {}};
  arguments["world_size"] = settings.config().world_size();
  const trainer::ModelSection& model = settings.config().model;
  exported.left_out =
      left_out(settings, import_training_arguments(arguments.dump(1), "result", model.num_kv_heads),
               {.program = "optimum-neuron",
                .has = has_field,
                .why = why,
                .form = {"model_source", "model.model_config"},
                // They are arguments of the launcher.
                .none = {"name", "trainer.devices", "trainer.num_nodes"}});
  return exported;
}

}  // namespace trellis::analysis
