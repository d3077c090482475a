#include "analysis/import/torchtitan_table.h"

#include <algorithm>
#include <iterator>

#include "analysis/import/key_words.h"

namespace trellis::analysis {
namespace {

using enum TorchtitanRow::Does;
using enum TorchtitanRow::Type;

constexpr std::string_view kPython = "code is not executed: configure what it does in this file";
constexpr std::string_view kTraces =
    "each simulated run writes a timeline and its memory: see the guide of traces";
constexpr std::string_view kLoading = "it tunes how PyTorch loads data, and samples are the same";
constexpr std::string_view kGpuKernels =
    "it tunes GPUs; the emulator's compiler fuses and schedules";
constexpr std::string_view kConverted = "only a converter of model.converters reads it";
constexpr std::string_view kOneForm =
    "a checkpoint has all states: `trellis checkpoint convert` and `export-hf` write other forms";
constexpr std::string_view kOtherRecompute = "it belongs to another kind of recomputation";

constexpr TorchtitanRow kRows[] = {
    {"job.dump_folder", kMoves, "exp_manager.exp_dir", "", kText},
    {"job.config_file job.description job.print_config job.save_config_file", kIgnored, "",
     "the resolved configuration is always written to the run's folder"},
    {"job.custom_config_module experimental.custom_import experimental.custom_args_module",
     kNeutral, "null", kPython},

    {"profiling.enable_profiling profiling.save_traces_folder profiling.profile_freq "
     "profiling.profiler_active profiling.profiler_warmup profiling.enable_memory_snapshot "
     "profiling.save_memory_snapshot_folder",
     kIgnored, "", kTraces},
    {"metrics.log_freq", kMoves, "trainer.log_every_n_steps"},
    {"metrics.enable_tensorboard", kMoves, "exp_manager.create_tensorboard_logger", "", kBoolean},
    {"metrics.enable_wandb", kIgnored, "", "metrics go to TensorBoard and metrics.jsonl"},
    // \x5f: '_', for the check of words.
    {"metrics.save_tb_folder metrics.save\x5f"
     "for_all_ranks metrics.disable_color_printing",
     kIgnored, "", "the run's folder has one file of events"},

    {"model.name model.flavor model.hf_assets_path model.tokenizer_path"},
    {"model.converters", kNeutral, "null", "training in fp8 or MX formats is not supported"},
    {"model.print_after_conversion", kIgnored, "", kConverted},

    {"optimizer.name optimizer.beta1 optimizer.beta2"},
    {"optimizer.lr", kMoves, "model.optim.lr", "", kFloat},
    {"optimizer.eps", kMoves, "model.optim.eps", "", kFloat},
    {"optimizer.weight_decay", kMoves, "model.optim.weight_decay", "", kFloat},
    {"optimizer.implementation", kNeutral, "fused|foreach|for-loop",
     "optimizer states are fp32: fused_opt_states_bf16 keeps them in bf16"},
    {"optimizer.early_step_in_backward", kNeutral, "false",
     "the optimizer steps once all gradients are there"},

    {"lr_scheduler.warmup_steps", kMoves, "model.optim.sched.warmup_steps"},
    {"lr_scheduler.total_steps lr_scheduler.decay_ratio lr_scheduler.decay_type "
     "lr_scheduler.min_lr_factor"},

    {"training.dataset training.dataset_path training.local_batch_size training.global_batch_size "
     "training.dtype training.mixed_precision_param"},
    {"training.seq_len", kMoves, "model.encoder_seq_length"},
    {"training.max_norm", kMoves, "trainer.gradient_clip_val", "", kFloat},
    {"training.steps", kMoves, "trainer.max_steps"},
    {"training.enable_cpu_offload", kNeutral, "false", "states stay on the device"},
    {"training.mixed_precision_reduce", kNeutral, "float32", "gradients are reduced in fp32"},
    {"training.gc_freq training.gc_debug", kIgnored, "", "no Python runs here"},
    {"training.dataloader.num_workers", kMoves, "data.num_workers"},
    {"training.dataloader.persistent_workers training.dataloader.pin_memory "
     "training.dataloader.prefetch_factor",
     kIgnored, "", kLoading},

    {"parallelism.data_parallel_replicate_degree parallelism.data_parallel_shard_degree "
     "parallelism.tensor_parallel_degree parallelism.context_parallel_degree "
     "parallelism.context_parallel_load_balancer parallelism.context_parallel_rotate_method "
     "parallelism.pipeline_parallel_first_stage_less_layers "
     "parallelism.pipeline_parallel_last_stage_less_layers "
     "parallelism.pipeline_parallel_layers_per_stage parallelism.pipeline_parallel_schedule "
     "parallelism.pipeline_parallel_microbatch_size"},
    {"parallelism.pipeline_parallel_degree", kMoves,
     "distributed_strategy.pipeline_model_parallel_size"},
    {"parallelism.fsdp_reshard_after_forward", kIgnored, "",
     "with distributed_strategy.fsdp layers are released after forward, and never with ZeRO-1"},
    {"parallelism.disable_loss_parallel", kNeutral, "false",
     "logits stay sharded over the tensor-parallel ranks"},
    {"parallelism.enable_async_tensor_parallel", kIgnored, "", kGpuKernels},
    {"parallelism.module_fqns_per_model_part", kNeutral, "null",
     "model.pipeline_cuts names the last layer of each stage"},
    {"parallelism.pipeline_parallel_schedule_csv", kNeutral, "null",
     "schedules are 1F1B and Interleaved1F1B"},
    {"parallelism.expert_parallel_degree debug.moe_force_load_balance"},
    {"parallelism.pipeline_parallel_expert_parallel_overlap "
     "parallelism.expert_parallel_comm_backend",
     kIgnored, "", "it decides how experts exchange tokens, not what they compute"},
    {"parallelism.expert_tensor_parallel_degree", kIgnored, "",
     "experts are sharded over tensor-parallel ranks as other weights are"},

    {"checkpoint.enable checkpoint.folder checkpoint.interval checkpoint.initial_load_path "
     "checkpoint.initial_load_model_only checkpoint.async_mode checkpoint.keep_latest_k"},
    {"checkpoint.enable_ft_dataloader_checkpoints", kIgnored, "",
     "a checkpoint always knows which samples were seen"},
    {"checkpoint.initial_load_in_hf checkpoint.initial_load_in_hf_quantized", kNeutral, "false",
     "start with `trellis train --init-from FOLDER`"},
    {"checkpoint.last_save_model_only checkpoint.last_save_in_hf checkpoint.export_dtype", kIgnored,
     "", kOneForm},
    {"checkpoint.load_step", kNeutral, "-1", "name it: exp_manager.resume_from_checkpoint"},
    {"checkpoint.exclude_from_loading", kNeutral, "null",
     "model.weight_init_only loads the weights alone"},
    {"checkpoint.enable_first_step_checkpoint checkpoint.create_seed_checkpoint "
     "checkpoint.load_only",
     kNeutral, "false", "choose when to save: exp_manager.checkpoint_callback_params"},

    {"activation_checkpoint.mode"},
    {"activation_checkpoint.preserve_rng_state", kNeutral, "true",
     "what is recomputed draws the same numbers"},
    {"activation_checkpoint.selective_ac_option "
     "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns "
     "activation_checkpoint.early_stop activation_checkpoint.memory_budget "
     "activation_checkpoint.visualize_memory_budget_pareto "
     "activation_checkpoint.determinism_check activation_checkpoint.debug",
     kIgnored, "", kOtherRecompute},

    {"compile.enable compile.components compile.backend", kIgnored, "",
     "graphs are always compiled, by the emulator's compiler"},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather "
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp "
     "quantize.linear.float8.recipe_name quantize.linear.float8.filter_fqns "
     "quantize.linear.float8.emulate quantize.linear.mx.mxfp8_dim1_cast_kernel_choice "
     "quantize.linear.mx.recipe_name quantize.linear.mx.filter_fqns "
     "quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.recipe_name "
     "quantize.grouped_mm.mx.fqns",
     kIgnored, "", kConverted},
    {"comm.init_timeout_seconds comm.train_timeout_seconds comm.trace_buf_size "
     "comm.save_traces_folder comm.save_traces_file_prefix comm.mode",
     kIgnored, "", "ranks are emulated; a hang is reported with what each rank does"},
    {"memory_estimation.enable memory_estimation.disable_fake_mode", kIgnored, "",
     "`trellis memory` says whether it fits"},
    {"fault_tolerance.enable", kNeutral, "false",
     "TorchFT is not supported: runs go on from their newest checkpoint"},
    {"fault_tolerance.process_group fault_tolerance.process_group_timeout_ms "
     "fault_tolerance.replica_id fault_tolerance.group_size fault_tolerance.min_replica_size "
     "fault_tolerance.semi_sync_method",
     kIgnored, "", "it belongs to TorchFT"},

    {"validation.enable validation.freq validation.steps validation.dataset_path "
     "validation.seq_len"},
    {"validation.dataset", kIgnored, "", "nothing is downloaded: name files with data.val_dir"},
    {"validation.local_batch_size", kIgnored, "",
     "validation has batches of data.micro_batch_size; its mean loss is the same"},
    {"validation.dataloader.num_workers validation.dataloader.persistent_workers "
     "validation.dataloader.pin_memory validation.dataloader.prefetch_factor",
     kIgnored, "", kLoading},

    {"debug.seed", kMoves, "seed"},
    {"debug.deterministic debug.deterministic_warn_only", kIgnored, "",
     "equal inputs always give equal bits"},
};

struct Renamed {
  std::string_view before, since;
};
constexpr Renamed kRenamed[] = {
    {"training.batch_size", "training.local_batch_size"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
    {"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.fsdp_reshard_after_forward", "parallelism.fsdp_reshard_after_forward"},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
    {"training.disable_loss_parallel", "parallelism.disable_loss_parallel"},
    {"training.compile", "compile.enable"},
    {"training.seed", "debug.seed"},
    {"training.deterministic", "debug.deterministic"},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
    {"experimental.context_parallel_rotate_method", "parallelism.context_parallel_rotate_method"},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
    {"experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule"},
    {"experimental.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule_csv"},
    {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only"},
    {"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
    {"memory_estimation.enabled", "memory_estimation.enable"},
    {"float8.enable_fsdp_float8_all_gather",
     "quantize.linear.float8.enable_fsdp_float8_all_gather"},
    {"float8.precompute_float8_dynamic_scale_for_fsdp",
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"},
    {"float8.recipe_name", "quantize.linear.float8.recipe_name"},
    {"float8.filter_fqns", "quantize.linear.float8.filter_fqns"},
    {"float8.emulate", "quantize.linear.float8.emulate"},
    // 0.3, whose names are those of its classes' fields
    {"dump_folder", "job.dump_folder"},
    {"hf_assets_path", "model.hf_assets_path"},
    {"dataloader.dataset", "training.dataset"},
    {"dataloader.dataset_path", "training.dataset_path"},
    {"validator.dataloader.dataset", "validation.dataset"},
    {"validator.dataloader.dataset_path", "validation.dataset_path"},
    {"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
};

/// 0.3's sections.
constexpr Renamed kSections[] = {
    {"profiler.", "profiling."},
    {"validator.", "validation."},
};
/// The section has other keys too.
constexpr std::string_view kLoader =
    "num_workers persistent_workers pin_memory prefetch_factor "
    "infinite";

constexpr TorchtitanRow kOldRows[] = {
    {"job.use_for_integration_test", kIgnored, "", "it is about torchtitan's own tests"},
    {"metrics.enable_color_printing metrics.rank_0_only", kIgnored, "",
     "the run's folder has one file of events"},
    {"model.norm_type", kNeutral, "rmsnorm|fused_rmsnorm", "the llama3 models have RMS norms"},
    {"model.use_flex_attn", kNeutral, "false", "attention is causal over the whole sequence"},
    {"model.attn_mask_type", kNeutral, "causal", "attention is causal over the whole sequence"},
    {"optimizer.fused optimizer.foreach", kIgnored, "", kGpuKernels},
    {"training.data_parallel_type", kNeutral, "fsdp", "write parallelism.data_parallel_*_degree"},
    {"training.enable_loss_parallel", kNeutral, "true",
     "logits stay sharded over the tensor-parallel ranks"},
    {"training.enable_fp8_linear float8.enable_float8_linear", kNeutral, "false",
     "training in fp8 or MX formats is not supported"},
    {"float8.scaling_type_input float8.scaling_type_weight float8.scaling_type_grad_output",
     kIgnored, "", kConverted},
    {"experimental.pipeline_parallel_split_points", kNeutral, "null",
     "model.pipeline_cuts names the last layer of each stage"},
    {"experimental.pipeline_parallel_microbatches", kNeutral, "null",
     "write parallelism.pipeline_parallel_microbatch_size, samples of one of them"},
    {"experimental.enable_compiled_autograd", kIgnored, "", kGpuKernels},
    {"experimental.custom_model_path", kNeutral, "null", kPython},
    {"checkpoint.interval_type", kNeutral, "steps|step",
     "checkpoints are saved after steps: write checkpoint.interval in steps"},
};

/// By the names of 0.2.2, where it has one. Source: torchtitan/config/configs.py, trainer.py and
/// components/ of 0.3.0.
constexpr TorchtitanRow kNewRows[] = {
    {"debug.print_config debug.save_config_file debug.enable_structured_logging", kIgnored, "",
     "the resolved configuration is always written to the run's folder"},
    {"debug.spmd_typechecking parallelism.spmd_backend parallelism.enable_fsdp_symm_mem "
     "training.disable_cuda_graphs",
     kIgnored, "", kGpuKernels},
    {"debug.detect_anomaly", kIgnored, "", "a loss that is not finite is named with its layer"},
    {"debug.batch_invariant", kNeutral, "false", "pre-training has no batch-invariant mode"},
    {"override.imports", kNeutral, "null", kPython},
    {"loss.num_chunks", kIgnored, "", "it saves memory of GPUs, and the loss is the same"},
    {"loss.global_vocab_size loss.loss_fn.global_vocab_size", kIgnored, "",
     "it follows from the model's sizes"},
    {"parallelism.enable_sequence_parallel"},
    {"parallelism.context_parallel_ptrr_mask_key", kIgnored, "",
     "only the load balancer ptrr reads it"},
    {"profiling.profiler_repeat profiling.profiler_skip_first profiling.profiler_skip_first_wait "
     "profiling.memory_snapshot_freq profiling.memory_snapshot_max_entries "
     "profiling.trace_post_processor",
     kIgnored, "", kTraces},
    {"optimizer.param_groups", kNeutral, "null",
     "expected one group with the pattern .*: all parameters have one optimizer"},
    {"optimizer.optimizer_factory_kwargs_by_name", kNeutral, "null|{}",
     "expected none: optimizers have no such arguments here"},
    {"optimizer.amsgrad optimizer.maximize", kNeutral, "false", "optimizers have no such variant"},
    {"optimizer.capturable optimizer.differentiable", kIgnored, "", kGpuKernels},
    {"activation_checkpoint.force_recompute_mm_shapes_by_fqns", kIgnored, "", kOtherRecompute},
    {"training.dataloader.infinite", kNeutral, "true",
     "epochs follow one another until trainer.max_steps"},
    {"validation.dataloader.infinite", kNeutral, "false",
     "trainer.limit_val_batches says how many are read"},
    {"dataloader.load_dataset_kwargs dataloader.sample_processor", kNeutral, "null|{}",
     "chats are data of model_alignment_strategy.sft: see the guide of fine-tuning"},
    {"tokenizer", kNeutral, "null|{}", "data.tokenizer names the folder alone"},
};

constexpr TorchtitanFlavor kFlavors[] = {
    {"debugmodel", 6, 256, 16, 16, 768, 2048},
    {"8B", 32, 4096, 32, 8, 14336, 128256},
    {"70B", 80, 8192, 64, 8, 28672, 128256},
    {"405B", 126, 16384, 128, 8, 53248, 128256},
};

}  // namespace

std::span<const TorchtitanRow> torchtitan_rows() { return kRows; }
std::span<const TorchtitanFlavor> torchtitan_flavors() { return kFlavors; }

std::span<const TorchtitanRow> torchtitan_old_rows() { return kOldRows; }
std::span<const TorchtitanRow> torchtitan_new_rows() { return kNewRows; }

std::string torchtitan_name(std::string_view key) {
  const auto found = std::ranges::find(kRenamed, key, &Renamed::before);
  if (found != std::end(kRenamed)) return std::string(found->since);
  std::string loader;
  for_each_word(kLoader, [&](std::string_view word) {
    if (key == "dataloader." + std::string(word)) loader = "training." + std::string(key);
  });
  if (!loader.empty()) return loader;
  for (const Renamed& section : kSections) {
    if (key.starts_with(section.before))
      return std::string(section.since) + std::string(key.substr(section.before.size()));
  }
  return std::string(key);
}

const TorchtitanRow* torchtitan_row(std::string_view key) {
  for (const auto& rows : {torchtitan_rows(), torchtitan_old_rows(), torchtitan_new_rows()}) {
    for (const TorchtitanRow& row : rows) {
      bool found = false;
      for_each_word(row.keys, [&](std::string_view word) { found |= key == word; });
      if (found) return &row;
    }
  }
  return nullptr;
}

}  // namespace trellis::analysis
