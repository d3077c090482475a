#include "trainer/config/known_keys.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace trellis::trainer {
namespace {

using enum KeyUse;

constexpr KeyGroup kGroups[] = {
    // The top level.
    {"", kCarriedOut, "name model_source seed"},
    {"", kSection, "trainer exp_manager distributed_strategy data model precision"},
    {"", kNeutral, "model_alignment_strategy", "null"},
    {"", kIgnored, "compiler_flags compiler_cache_url neuron_rt_exec_timeout neuron_experimental_compress_rg"},
    // NxDT misspells the first one; both are the depth of the hardware's execution queue.
    {"", kIgnored, "aync_exec_max_inflight_requests async_exec_max_inflight_requests"},
    {"", kNeutral, "bucket_size_collectives", "null|1024"},

    {"trainer", kCarriedOut, "devices num_nodes max_steps log_every_n_steps gradient_clip_val"},
    {"trainer", kIgnored, "benchmark multiple_trainloader_mode inference_mode"},
    {"trainer", kNeutral, "enable_progress_bar", "true|null"},
    {"trainer", kIgnored, "sequential_move_factor"},
    // There is no validation data (data.val_dir) that these could apply to.
    {"trainer", kIgnored, "num_sanity_val_steps val_check_interval check_val_every_n_epoch"},
    {"trainer", kIgnored, "limit_val_batches limit_test_batches limit_predict_batches"},
    {"trainer", kNeutral, "lnc", "null"},
    {"trainer", kNeutral, "max_epochs", "null|-1"},
    {"trainer", kNeutral, "min_epochs min_steps max_time limit_train_batches gradient_clip_algorithm", "null"},
    {"trainer", kNeutral, "callbacks plugins strategy profiler default_root_dir", "null"},
    {"trainer", kNeutral, "accumulate_grad_batches", "1|null"},
    {"trainer", kNeutral, "enable_model_summary enable_checkpointing sync_batchnorm detect_anomaly", "false|null"},
    {"trainer", kNeutral, "fast_dev_run barebones use_distributed_sampler", "false|null"},
    {"trainer", kNeutral, "logger", "false|null"},
    {"trainer", kNeutral, "deterministic", "true|false|null"},
    {"trainer", kNeutral, "accelerator", "null|tpu"},
    {"trainer", kNeutral, "precision", "null|32"},
    {"trainer", kNeutral, "reload_dataloaders_every_n_epochs overfit_batches", "0|null"},
    {"trainer", kNeutral, "track_grad_norm", "-1|null"},

    {"exp_manager", kCarriedOut, "explicit_log_dir exp_dir name version use_datetime_version create_tensorboard_logger"},
    {"exp_manager", kIgnored, "seconds_to_sleep log_local_rank_0_only log_global_rank_0_only ckpt_ptl_version"},
    {"exp_manager", kIgnored, "save_xser load_xser resume_past_end resume_ignore_no_checkpoint disable_validation_on_resume"},
    // Gradient norm and step time are always logged, and SIGTERM always ends a run cleanly: only switching them off is not carried out.
    {"exp_manager", kNeutral, "create_preemption_callback log_gradient_norm log_step_timing", "true|null"},
    {"exp_manager", kNeutral, "summary_writer_kwargs", "null"},
    {"exp_manager", kIgnored, "wandb_logger_kwargs mlflow_logger_kwargs dllogger_logger_kwargs"},
    {"exp_manager", kIgnored, "clearml_logger_kwargs neptune_logger_kwargs"},
    {"exp_manager", kSection, "checkpoint_callback_params early_stopping_callback_params step_timing_kwargs ema"},
    {"exp_manager", kNeutral, "resume_if_exists save_bf16 async_checkpointing enable_recovery_time_instrumentation", "false|null"},
    {"exp_manager", kNeutral, "create_checkpoint_callback create_early_stopping_callback log_parameter_norm", "false|null"},
    {"exp_manager", kNeutral, "create_wandb_logger create_mlflow_logger create_dllogger_logger", "false|null"},
    {"exp_manager", kNeutral, "create_clearml_logger create_neptune_logger", "false|null"},
    {"exp_manager", kNeutral, "resume_from_checkpoint files_to_copy max_time_per_run max_time", "null"},

    // Parameters of callbacks that are off: their names are checked, their values have nothing to act on.
    {"exp_manager.checkpoint_callback_params", kIgnored,
     "filepath dirpath filename monitor mode save_top_k save_last verbose save_weights_only auto_insert_metric_name every_n_epochs "
     "every_n_train_steps train_time_interval save_on_train_epoch_end prefix postfix save_best_model always_save_nemo "
     "save_nemo_on_train_end model_parallel_size async_save save_last_n_optim_states enable_version_counter "
     "use_master_weights_in_ckpt"},
    {"exp_manager.early_stopping_callback_params", kIgnored,
     "monitor mode min_delta patience verbose strict check_finite stopping_threshold divergence_threshold "
     "check_on_train_epoch_end log_rank_zero_only"},
    {"exp_manager.step_timing_kwargs", kIgnored, "reduction sync_cuda buffer_size"},
    {"exp_manager.ema", kNeutral, "enable", "false|null"},
    {"exp_manager.ema", kIgnored,
     "decay apply_ema_every_n_steps start_step evaluate_ema_weights_instead cpu_offload validate_original_weights every_n_steps"},

    {"distributed_strategy", kCarriedOut, "tensor_model_parallel_size pipeline_model_parallel_size zero1 sequence_parallel"},
    {"distributed_strategy", kNeutral, "virtual_pipeline_model_parallel_size", "1|null"},
    {"distributed_strategy", kNeutral, "context_parallel_size expert_model_parallel_size token_shuffle_group_size", "1|null"},
    {"distributed_strategy", kNeutral, "kv_replicator", "1|null|false"},
    {"distributed_strategy", kNeutral, "pipeline_model_parallel_split_rank", "0|null"},

    {"data", kCarriedOut, "micro_batch_size global_batch_size train_dir seq_length"},
    {"data", kSection, "tokenizer"},
    {"data", kIgnored, "num_workers skip_warmup delay_data_mmap exchange_indices_distributed index_mapping_dir"},
    {"data", kIgnored, "validation_drop_last"},
    {"data", kNeutral, "data_prefix splits_string val_dir test_dir", "null"},
    {"data", kNeutral, "data_impl", "null|mmap"},
    // Sequential batches of samples that the data set itself has shuffled: what the text data module does.
    {"data", kNeutral, "dataloader_type", "single|null"},
    {"data", kNeutral, "drop_last shuffle_documents", "true|null"},
    {"data", kNeutral, "reset_position_ids reset_attention_mask eod_mask_loss no_seqlen_plus_one_input_tokens", "false|null"},
    {"data", kNeutral, "pad_samples_to_global_batch_size fine_tuning packing use_sft_style_data_module", "false|null"},
    {"data", kNeutral, "train_ds validation_ds test_ds dev_choose_samples dataset_name prompt_name subset_name", "null"},

    {"data.tokenizer", kCarriedOut, "library"},
    {"data.tokenizer", kIgnored, "sentencepiece_legacy use_fast"},
    {"data.tokenizer", kNeutral, "type model vocab_file merge_file delimiter", "null"},

    {"model", kCarriedOut,
     "num_layers hidden_size ffn_hidden_size num_attention_heads num_kv_heads encoder_seq_length max_position_embeddings "
     "make_vocab_size_divisible_by layernorm_epsilon init_method_std do_layer_norm_weight_decay "
     "position_freq_base rope_theta model_config kv_channels"},
    {"model", kCarriedOut, "vocab_size"},  // an extension: NxDT takes it from the tokenizer or from config.json
    {"model", kSection, "optim fusions"},
    {"model", kIgnored, "use_cpu_initialization persist_layer_norm transpose_nki_inputs fuse_qkv masked_softmax_fusion"},
    // The factor 1/layer is multiplied back inside the softmax: exact arithmetic gives the same scores.
    {"model", kIgnored, "apply_query_key_layer_scaling"},
    {"model", kNeutral, "use_scaled_init_method", "true|null"},
    {"model", kNeutral, "normalization", "rmsnorm", "layernorm"},
    {"model", kNeutral, "activation", "swiglu", "gelu"},
    {"model", kNeutral, "position_embedding_type", "rope", "learned_absolute"},
    {"model", kNeutral, "has_bias", "false", "true"},
    {"model", kNeutral, "share_embeddings_and_output_weights", "false", "true"},
    {"model", kNeutral, "hidden_dropout", "0", "0.1"},
    {"model", kNeutral, "attention_dropout ffn_dropout", "0|null"},
    {"model", kNeutral, "transformer_block_type", "pre_ln|null"},
    {"model", kNeutral, "rotary_percentage positition_interpolation_factor position_abf_factor", "1|null"},
    {"model", kNeutral, "precision", "32|null"},
    {"model", kNeutral, "sliding_window_size moe pipeline_cuts activations_checkpoint_granularity", "null"},
    {"model", kNeutral, "activations_checkpoint_recompute", "null|[]"},
    {"model", kNeutral, "activations_checkpoint_method", "null|uniform"},
    {"model", kNeutral, "activations_checkpoint_num_layers", "null|0|1"},
    {"model", kNeutral, "num_micro_batches_with_partial_activation_checkpoints activations_checkpoint_layers_per_pipeline", "null"},
    {"model", kNeutral, "disable_layer_norm_checkpointing", "true|null"},
    {"model", kNeutral, "qkv_linear weight_init_only save_logits fp32_residual_connection fp16_lm_cross_entropy", "false|null"},
    {"model", kNeutral, "megatron_amp_o2 megatron_amp_O2 gradient_accumulation_fusion use_emha", "false|null"},
    {"model", kNeutral, "bias_dropout_add_fusion bias_activation_fusion", "false|null"},

    {"model.fusions", kIgnored, "softmax"},
    {"model.fusions", kNeutral, "do_layer_norm_weight_decay", "false|null"},
    {"model.fusions", kNeutral, "flash_attention ring_attention", "false|null"},

    {"model.optim", kCarriedOut, "name lr weight_decay betas eps"},
    {"model.optim", kSection, "sched"},
    {"model.optim", kIgnored, "capturable"},
    {"model.optim", kNeutral, "amsgrad", "false|null"},

    {"model.optim.sched", kCarriedOut, "name warmup_steps warmup_ratio constant_steps constant_ratio min_lr"},
    {"model.optim.sched", kIgnored, "max_steps"},  // NxDT, too, always replaces it by trainer.max_steps
    {"model.optim.sched", kNeutral, "hold_steps hold_ratio", "0|null"},
    {"model.optim.sched", kNeutral, "monitor t_max_epochs args", "null"},
    {"model.optim.sched", kNeutral, "reduce_on_plateau", "false|null"},
    {"model.optim.sched", kNeutral, "last_epoch", "-1|null"},

    {"precision", kCarriedOut, "type parallel_layers_reduce_dtype"},
    // NxDT reads these for the type `manual` only, which is not carried out.
    {"precision", kIgnored, "master_weights fp32_grad_acc fp32_grads_cc xla_use_bf16 xla_downcast_bf16"},
    {"precision", kIgnored, "neuron_rt_stochastic_rounding_en"},
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool same_scalar(std::string_view a, std::string_view b) {
  const auto x = number(a), y = number(b);
  if (x && y) return *x == *y;
  return lower(a == "~" ? "null" : a) == lower(b);
}

}  // namespace

std::span<const KeyGroup> key_groups() { return kGroups; }

std::vector<KnownKey> known_keys_of(std::string_view section) {
  std::vector<KnownKey> known;
  for (const KeyGroup& group : kGroups) {
    if (group.section != section) continue;
    for (std::string& key : split(group.keys, ' ')) known.push_back({std::move(key), &group});
  }
  return known;
}

std::vector<std::string> sections_that_know(std::string_view key) {
  std::vector<std::string> sections;
  for (const KeyGroup& group : kGroups) {
    const auto keys = split(group.keys, ' ');
    if (std::ranges::find(keys, key) == keys.end()) continue;
    sections.push_back(group.section.empty() ? "the top level" : "section `" + std::string(group.section) + "`");
  }
  return sections;
}

bool is_neutral(std::string_view scalar, std::string_view neutral) {
  const auto values = split(neutral, '|');
  return std::ranges::any_of(values, [&](const std::string& value) { return same_scalar(scalar, value); });
}

}  // namespace trellis::trainer
