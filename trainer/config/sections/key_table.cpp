#include "trainer/config/reader/known_keys.h"

#include <algorithm>

#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

using enum KeyUse;

constexpr std::string_view kNxdt = KeyGroup().origin;
constexpr KeyGroup kGroups[] = {
    // The top level.
    {"", kSupported, "name model_source"},
    {"", kSupported, "software instance", "", "", kOwnKey},
    {"", kSupported, "seed bucket_size_collectives"},
    {"", kSection,
     "trainer exp_manager distributed_strategy data model precision model_alignment_strategy"},
    {"", kIgnored, "compiler_flags compiler_cache_url", "",
     "the emulator's compiler has no flags and keeps its programs in memory"},
    {"", kIgnored, "neuron_rt_exec_timeout", "",
     "emulated execution never hangs; --timeout names a rank that is missing at a communication"},
    {"", kIgnored, "neuron_experimental_compress_rg", "",
     "it shortens replica groups in a compiler's files; the emulator passes ranks"},
    // NxDT misspells the first one.
    {"", kIgnored, "aync_exec_max_inflight_requests async_exec_max_inflight_requests", "",
     "the emulator has no execution queue whose depth could be set"},
    {"", kNeutral, "restore_from_path", "null",
     "weights of an earlier run come through exp_manager.resume_from_checkpoint"},

    {"trainer", kSupported, "", "", "", kNxdt, &list_trainer_keys},
    {"trainer", kIgnored, "limit_predict_batches", "", "nothing predicts"},
    {"trainer", kIgnored, "multiple_trainloader_mode", "", "there is one loader of training data"},
    {"trainer", kIgnored, "inference_mode", "", "validation never records gradients"},
    {"trainer", kNeutral, "accumulate_grad_batches", "1|null",
     "it is derived: global_batch_size / (micro_batch_size × DP)"},
    {"trainer", kNeutral, "gradient_clip_algorithm", "null",
     "gradients are clipped by their global norm"},
    {"trainer", kNeutral, "callbacks plugins strategy profiler", "null",
     "the configuration's sections set them up"},
    {"trainer", kNeutral, "default_root_dir", "null", "use exp_manager.exp_dir"},
    {"trainer", kNeutral, "logger", "false|null",
     "loggers belong to exp_manager.create_tensorboard_logger"},
    {"trainer", kNeutral, "enable_checkpointing", "false|null",
     "checkpoints belong to exp_manager.create_checkpoint_callback"},
    {"trainer", kNeutral, "enable_model_summary", "false|null",
     "`trellis validate` prints what will be built"},
    {"trainer", kNeutral, "sync_batchnorm", "false|null", "no model has batch norms"},
    {"trainer", kNeutral, "benchmark detect_anomaly", "false|null",
     "tunes a GPU or an autograd that this trainer does not have"},
    {"trainer", kNeutral, "fast_dev_run barebones", "false|null",
     "use trainer.max_steps or COMPILE=1"},
    {"trainer", kNeutral, "use_distributed_sampler replace_sampler_ddp", "false|null",
     "the data module itself gives each rank its part"},
    {"trainer", kNeutral, "deterministic", "true|false|null", "every run is deterministic"},
    {"trainer", kNeutral, "accelerator", "null|tpu", "choose the device with --device"},
    {"trainer", kNeutral, "precision", "null|32", "section `precision` replaces it"},
    {"trainer", kNeutral, "reload_dataloaders_every_n_epochs", "0|null",
     "the order of samples is fixed by the seed"},
    {"trainer", kNeutral, "overfit_batches", "0|null", "use trainer.limit_train_batches"},

    {"exp_manager", kSupported, "", "", "", kNxdt, &list_exp_manager_keys},
    {"exp_manager", kSection,
     "checkpoint_callback_params early_stopping_callback_params step_timing_kwargs ema"},
    {"exp_manager", kSupported, "", "", "", kNxdt, &list_checkpoint_keys},
    {"exp_manager", kSupported, "", "", "", kOwnKey, &list_checkpoint_keys},
    {"exp_manager", kNeutral, "num_workers", "null",
     "each rank writes its own files, all ranks at the same time"},
    {"exp_manager", kNeutral, "num_kept_ckpts", "null",
     "use checkpoint_callback_params.save_top_k with monitor: step and mode: max"},
    {"exp_manager", kNeutral, "tag", "null", "use checkpoint_callback_params.filename"},
    {"exp_manager", kNeutral, "zero1_optimizer", "null", "use distributed_strategy.zero1"},
    {"exp_manager", kIgnored, "load_xser", "", "the checkpoint itself records how it was written"},
    {"exp_manager", kIgnored, "ckpt_ptl_version", "",
     "checkpoints carry the version of Lightning whose form they have"},
    {"exp_manager", kIgnored, "resume_past_end", "",
     "a finished run that is resumed goes on to trainer.max_steps, or ends at once"},
    {"exp_manager", kIgnored, "disable_validation_on_resume", "",
     "checkpoints are saved between steps, after the validation that follows a step"},
    {"exp_manager", kIgnored, "seconds_to_sleep", "", "ranks wait for the run's directory itself"},
    {"exp_manager", kNeutral, "create_preemption_callback", "true|null",
     "SIGTERM always ends a run cleanly"},
    {"exp_manager", kNeutral, "summary_writer_kwargs", "null",
     "the TensorBoard writer has no options"},
    {"exp_manager", kNeutral, "create_wandb_logger", "false|null",
     "there is no Weights & Biases logger; metrics go to TensorBoard and metrics.jsonl"},
    {"exp_manager", kNeutral,
     "create_mlflow_logger create_dllogger_logger create_clearml_logger create_neptune_logger",
     "false|null", "metrics go to TensorBoard and metrics.jsonl"},
    {"exp_manager", kNeutral,
     "wandb_logger_kwargs mlflow_logger_kwargs dllogger_logger_kwargs clearml_logger_kwargs "
     "neptune_logger_kwargs",
     "null", "that logger does not exist"},

    {"exp_manager.checkpoint_callback_params", kSupported, "", "", "", kNxdt,
     &list_checkpoint_params},
    {"exp_manager.checkpoint_callback_params", kNeutral, "filepath", "null",
     "use dirpath and filename"},
    {"exp_manager.checkpoint_callback_params", kIgnored, "save_on_train_epoch_end", "",
     "at the end of an epoch a checkpoint is saved after the validation, if there is one"},
    {"exp_manager.checkpoint_callback_params", kIgnored, "prefix postfix save_nemo_on_train_end",
     "", "NxDT writes no .nemo archives either"},
    {"exp_manager.checkpoint_callback_params", kNeutral, "always_save_nemo save_best_model",
     "false|null", ".nemo archives are not written; save_top_k keeps the best checkpoints"},
    {"exp_manager.checkpoint_callback_params", kIgnored, "model_parallel_size", "",
     "the files of a checkpoint are removed together, however many they are"},
    {"exp_manager.checkpoint_callback_params", kIgnored, "use_master_weights_in_ckpt", "",
     "master weights are always part of the optimizer states"},
    {"exp_manager.early_stopping_callback_params", kSupported, "", "", "", kNxdt,
     &list_early_stopping_keys},
    {"exp_manager.early_stopping_callback_params", kIgnored, "verbose log_rank_zero_only", "",
     "why a run ends is on the console and in the log of rank 0"},
    {"exp_manager.early_stopping_callback_params", kIgnored, "strict", "",
     "a monitored number that is never there is always an error"},
    {"exp_manager.early_stopping_callback_params", kNeutral, "check_on_train_epoch_end",
     "false|null", "it is checked after each validation"},
    {"exp_manager.step_timing_kwargs", kIgnored, "sync_cuda", "",
     "there is no CUDA device; a step ends when its numbers are read"},
    {"exp_manager.step_timing_kwargs", kNeutral, "reduction", "mean|null",
     "times are logged step by step"},
    {"exp_manager.step_timing_kwargs", kNeutral, "buffer_size", "1|null",
     "times are logged step by step"},
    {"exp_manager.ema", kSupported, "", "", "", kNxdt, &list_ema_keys},
    {"exp_manager.ema", kIgnored, "cpu_offload", "",
     "averages stay in the optimizer's shards on the device"},
    {"exp_manager.ema", kNeutral, "validate_original_weights", "false|null",
     "use evaluate_ema_weights_instead"},

    {"distributed_strategy", kSupported, "", "", "", kNxdt, &list_distributed_strategy_keys},
    {"distributed_strategy", kSupported, "", "", "", kOwnKey, &list_distributed_strategy_keys},
    {"distributed_strategy", kNeutral, "pipeline_model_parallel_split_rank", "0|null",
     "no model has an encoder and a decoder"},
    {"distributed_strategy", kNeutral, "wrap_with_zero", "null", "its name is `zero1`"},

    {"data", kSupported, "", "", "", kNxdt, &list_data_keys},
    {"data", kSupported, "", "", "", kOwnKey, &list_data_keys},
    {"data", kIgnored, "dataset_name prompt_name subset_name", "",
     "no templates of promptsource are applied: give records of formatted texts, or of messages "
     "for the tokenizer's chat template"},
    {"data", kSection, "tokenizer"},
    {"data", kIgnored, "pad_samples_to_global_batch_size", "",
     "with validation_drop_last false a last batch is always filled, with rows that do not count"},
    {"data", kIgnored, "skip_warmup delay_data_mmap", "",
     "files are mapped when they are opened and read page by page"},
    {"data", kIgnored, "exchange_indices_distributed", "",
     "the ranks of a process share one index"},
    {"data", kIgnored, "packing use_sft_style_data_module", "",
     "NxDT does not read it either; packing belongs to model_alignment_strategy.sft"},
    {"data", kNeutral, "data_impl", "mmap|null", "indexed data is mapped into memory"},
    {"data", kNeutral, "shuffle_documents", "true|null", "documents are always shuffled"},
    {"data", kNeutral, "reset_attention_mask", "false|null",
     "attention is causal over the whole sequence"},
    {"data", kNeutral, "fine_tuning", "false|null",
     "fine-tuning is asked for by section model_alignment_strategy"},
    {"data", kNeutral, "train_ds validation_ds test_ds", "null",
     "use train_dir, val_dir and test_dir"},

    {"data.tokenizer", kSupported, "", "", "", kNxdt, &list_tokenizer_keys},
    {"data.tokenizer", kSupported, "", "", "", kOwnKey, &list_tokenizer_keys},
    {"data.tokenizer", kIgnored, "sentencepiece_legacy use_fast", "",
     "there is one implementation of each tokenizer"},
    {"data.tokenizer", kNeutral, "delimiter", "null", "no tokenizer here splits by a delimiter"},

    {"model", kSupported, "", "", "", kNxdt, &list_model_keys},
    {"model", kSupported, "", "", "", kOwnKey, &list_model_keys},
    {"model", kSupported, "", "", "", kNxdt, &list_dist_ckpt_keys},
    {"model", kIgnored, "dist_ckpt_parallel_save_within_dp", "",
     "only ranks of one data-parallel group have equal files"},
    {"model", kIgnored, "dist_ckpt_load_on_device", "",
     "it belongs to zarr; files are read into the place of their tensors"},
    {"model", kIgnored, "save_logits", "",
     "a training step returns its loss; nothing reads logits"},
    {"model", kSection, "optim fusions moe rope_scaling"},
    {"model", kIgnored, "use_cpu_initialization", "",
     "weights are always drawn on the CPU, a few ranks at a time (trainer.sequential_move_factor)"},
    {"model", kIgnored, "persist_layer_norm masked_softmax_fusion", "",
     "a fused kernel of NVIDIA GPUs; the compiler fuses"},
    {"model", kIgnored, "transpose_nki_inputs", "",
     "a layout of NKI's kernels; the emulator's compiler chooses its own"},
    {"model", kNeutral, "precision", "32|null", "section `precision` replaces it"},
    {"model", kNeutral, "activations_checkpoint_method", "uniform|null",
     "activations_checkpoint_granularity full recomputes every layer"},
    {"model", kNeutral, "activations_checkpoint_num_layers", "1|0|null",
     "each layer is recomputed by itself"},
    {"model", kNeutral,
     "num_micro_batches_with_partial_activation_checkpoints "
     "activations_checkpoint_layers_per_pipeline",
     "null", "every micro-batch and stage recomputes alike"},
    {"model", kNeutral, "disable_layer_norm_checkpointing", "true|null",
     "name LlamaRMSNorm in activations_checkpoint_recompute to recompute norms"},
    {"model", kNeutral, "fp16_lm_cross_entropy", "false|null", "the loss is computed in fp32"},
    {"model", kNeutral, "megatron_amp_o2 megatron_amp_O2", "false|null",
     "section `precision` replaces it"},
    {"model", kNeutral,
     "gradient_accumulation_fusion grad_div_ar_fusion bias_dropout_add_fusion "
     "bias_activation_fusion use_emha",
     "false|null", "a fused kernel of NVIDIA GPUs; the compiler fuses"},
    {"model", kNeutral, "native_amp_init_scale native_amp_growth_interval hysteresis", "null",
     "bf16 needs no loss scaling"},
    {"model", kNeutral, "mcore_gpt transformer_engine", "false|null",
     "there is one implementation of each model"},
    {"model", kNeutral, "pre_process post_process", "true|null",
     "the first stage always embeds, the last one always has the head"},
    {"model", kNeutral, "num_query_groups", "null", "its name is `num_kv_heads`"},
    {"model", kNeutral, "nsys_profile", "null",
     "it profiles NVIDIA GPUs; `trellis simulate` writes a trace"},
    {"model", kNeutral, "onnx_safe gradient_as_bucket_view sync_batch_comm", "false|null",
     "NxDT removed it"},
    {"model", kNeutral, "apex_transformer_log_level", "null", "NxDT removed it"},
    {"model", kNeutral, "flexible_pipeline_parallel_stages", "null", "its name is `pipeline_cuts`"},
    {"model", kNeutral, "zero_use_master_weight zero_use_fp32_grad_accum", "null",
     "section `precision` replaces it"},
    {"model", kNeutral, "convert_to_hf", "null", "it belongs to a converter of checkpoints"},
    {"model", kLater, "fp8 fp8_e4m3 fp8_hybrid", "false|null", "training in fp8 is not supported"},
    {"model", kLater, "fp8_margin", "0|null", "training in fp8 is not supported"},

    {"model.fusions", kSupported, "", "", "", kNxdt, &list_fusion_keys},
    {"model.fusions", kIgnored, "softmax", "",
     "the compiler fuses; fusions.flash_attention chooses the kernel"},

    {"model.rope_scaling", kSupported, "", "", "", kNxdt, &list_rope_scaling_keys},

    {"model.moe", kSupported, "", "", "", kNxdt, &list_moe_keys},
    {"model.moe", kSupported, "", "", "", kOwnKey, &list_moe_keys},
    {"model.moe", kNeutral, "dropout moe_dropout", "0|null", "experts have no dropout"},

    {"model.optim", kSupported, "name lr weight_decay betas eps"},
    {"model.optim", kSupported,
     "amsgrad momentum dampening nesterov rho lr_decay initial_accumulator_value alpha centered "
     "etas step_sizes"},
    {"model.optim", kSupported,
     "grad_averaging luc luc_trust luc_eps beta1 clip_threshold decay_rate scale_parameter "
     "relative_step warmup_init"},
    {"model.optim", kSupported, "correct_bias min_step"},
    {"model.optim", kSection, "sched"},
    {"model.optim", kIgnored, "capturable", "", "there are no CUDA graphs"},

    {"model.optim.sched", kSupported,
     "name warmup_steps warmup_ratio constant_steps constant_ratio hold_steps hold_ratio "
     "min_lr max_steps"},
    {"model.optim.sched", kSupported,
     "d_model decay_rate power cycle step_size gamma mode factor patience threshold "
     "threshold_mode"},
    {"model.optim.sched", kSupported,
     "cooldown eps base_lr max_lr step_size_up step_size_down scale_mode cycle_momentum"},
    {"model.optim.sched", kNeutral, "monitor", "val_loss|loss|null",
     "ReduceLROnPlateau follows the validation loss"},
    {"model.optim.sched", kNeutral, "t_max_epochs args", "null",
     "write the schedule's own arguments"},
    {"model.optim.sched", kNeutral, "reduce_on_plateau", "false|null",
     "use name: ReduceLROnPlateau"},
    {"model.optim.sched", kNeutral, "last_epoch", "-1|null", "a run starts at step 0"},

    {"precision", kSupported, "", "", "", kNxdt, &list_precision_keys},
    {"precision", kIgnored, "fp32_grads_cc", "",
     "NxDT does not read it either; fp32_grad_acc sums gradients in fp32"},

    {"model_alignment_strategy", kSection, "dpo sft orpo peft"},
    {"model_alignment_strategy.dpo", kSupported, "", "", "", kNxdt, &list_dpo_keys},
    {"model_alignment_strategy.dpo", kSupported, "", "", "", kOwnKey, &list_dpo_keys},
    {"model_alignment_strategy.sft", kSupported, "", "", "", kNxdt, &list_sft_keys},
    {"model_alignment_strategy.sft", kSupported, "", "", "", kOwnKey, &list_sft_keys},
    {"model_alignment_strategy.orpo", kSupported, "", "", "", kNxdt, &list_orpo_keys},
    {"model_alignment_strategy.orpo", kSupported, "", "", "", kOwnKey, &list_orpo_keys},
    {"model_alignment_strategy.peft", kSupported, "", "", "", kNxdt, &list_peft_keys},
    {"model_alignment_strategy.peft", kSupported, "", "", "", kOwnKey, &list_peft_keys},
    {"model_alignment_strategy.peft", kNeutral, "use_dora", "false|null",
     "weight-decomposed adapters (DoRA) are not supported"},
    {"model_alignment_strategy.peft", kIgnored, "lora_verbose", "",
     "`trellis validate` prints which layers get adapters"},
};

std::vector<std::string> keys_of(const KeyGroup& group) {
  std::vector<std::string> keys = split_texts(group.keys, ' ');
  if (group.fields != nullptr) {
    std::vector<FieldName> names;
    Fields fields = Fields::naming(names);
    group.fields(fields);
    for (FieldName& name : names)
      if (name.own == (group.origin == kOwnKey)) keys.push_back(std::move(name.key));
  }
  return keys;
}

}  // namespace

std::span<const KeyGroup> key_groups() { return kGroups; }

std::vector<KnownKey> known_keys_of(std::string_view section) {
  std::vector<KnownKey> known;
  for (const KeyGroup& group : kGroups) {
    if (group.section != section) continue;
    for (std::string& key : keys_of(group)) known.push_back({std::move(key), &group});
  }
  return known;
}

std::vector<std::string> sections_that_know(std::string_view key) {
  std::vector<std::string> sections;
  for (const KeyGroup& group : kGroups) {
    const auto keys = keys_of(group);
    if (group.use == kNeutral || std::ranges::find(keys, key) == keys.end()) continue;
    sections.push_back(group.section.empty() ? "the top level"
                                             : "section `" + std::string(group.section) + "`");
  }
  return sections;
}

}  // namespace trellis::trainer
