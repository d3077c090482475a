#include "analysis/import/hugging_face_parts.h"

namespace trellis::analysis::hugging_face {
namespace {

using enum RowUse;

const char* const kNotOfDecoders = "no model here has it; train another model, or remove the key";
const char* const kAskedOfPython = "it chooses what a call in Python returns, not what is trained";
const char* const kGenerates = "it belongs to generation, and nothing is generated here";
const char* const kOldBackend = "a backend of other hardware or of an older transformers";

}  // namespace

const std::vector<Row>& model_rows() {
  static const std::vector<Row> rows = {
      {"_name_or_path name_or_path transformers_version _commit_hash unsloth_version "
       "unsloth_fixed",
       kIgnored, "it says where the file comes from"},
      {"bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id "
       "decoder_start_token_id tokenizer_class prefix",
       kIgnored, "special tokens belong to the tokenizer and to the data"},
      {"use_cache cache_implementation", kIgnored, "keys and values are kept for generation only"},
      {"return_dict output_attentions output_hidden_states output_scores torchscript "
       "return_dict_in_generate use_return_dict",
       kIgnored, kAskedOfPython},
      {"chunk_size_feed_forward", kNeutral,
       "the feed-forward network is computed for the whole sequence at once", "0"},
      {"label2id problem_type finetuning_task classifier_dropout", kIgnored,
       "it belongs to a head for classification, which is not trained"},
      {"pooler_act pooler_output_size", kIgnored,
       "the pooler is no part of the loss of image classification"},
      {"encoder_stride", kIgnored, "it belongs to a decoder of masked images"},
      {"max_length min_length do_sample temperature top_k top_p typical_p repetition_penalty "
       "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_beams "
       "num_beam_groups diversity_penalty early_stopping bad_words_ids num_return_sequences "
       "forced_bos_token_id forced_eos_token_id remove_invalid_values suppress_tokens "
       "exponential_decay_length_penalty begin_suppress_tokens task_specific_params "
       "generation_config",
       kIgnored, kGenerates},
      {"attn_implementation _attn_implementation _attn_implementation_autoset "
       "_attn_implementation_internal _flash_attn_2_enabled",
       kIgnored, "model.fusions.flash_attention chooses the kernel"},
      {"use_bfloat16 tf_legacy_loss", kIgnored, "it belongs to TensorFlow's models"},
      {"rope_interleaved", kNeutral, "only the halves of a head are rotated against each other",
       "false"},
      {"is_decoder is_encoder_decoder add_cross_attention tie_encoder_decoder", kNeutral,
       kNotOfDecoders, "false"},
      {"cross_attention_hidden_size pruned_heads", kNeutral, kNotOfDecoders, "null"},
      {"partial_rotary_factor", kNeutral, "the whole of a head is rotated", "1"},
      {"gradient_checkpointing", kNeutral, "write training_args.gradient_checkpointing", "false"},
      {"quantization_config", kNeutral,
       "quantized weights are not trained; name the model that it was made of", "null"},
      {"auto_map", kNeutral,
       "code of the hub is not executed; remove the key if the model is one of transformers'",
       "null"},
      {"router_jitter_noise", kNeutral, "write a section model.moe with jitter_eps", "0"},
  };
  return rows;
}

namespace {

/// One name here, one name there.
std::vector<Row> direct_rows() {
  return {
      {"learning_rate", kNumber, "model.optim.lr"},
      {"weight_decay", kNumber, "model.optim.weight_decay"},
      {"dataloader_num_workers", kInteger, "data.num_workers"},
      {"save_only_model", kBoolean, "exp_manager.checkpoint_callback_params.save_weights_only"},
      {"ddp_bucket_cap_mb", kInteger, "bucket_size_collectives"},
      {"tensor_parallel_size", kInteger, "distributed_strategy.tensor_model_parallel_size"},
      {"pipeline_parallel_size", kInteger, "distributed_strategy.pipeline_model_parallel_size"},
      {"virtual_pipeline_parallel_size num_virtual_pipeline_stages", kInteger,
       "distributed_strategy.virtual_pipeline_model_parallel_size"},
      {"zero_1 pipeline_parallel_use_zero1_optimizer", kBoolean, "distributed_strategy.zero1"},
      {"use_xser", kBoolean, "exp_manager.save_xser"},
      {"async_save", kBoolean, "exp_manager.async_checkpointing"},
      {"fuse_qkv", kBoolean, "model.fuse_qkv"},
      {"use_flash_attention", kBoolean, "model.fusions.flash_attention"},
      {"transpose_nki_inputs", kBoolean, "model.transpose_nki_inputs"},
      {"optimizer_save_master_weights_in_ckpt", kBoolean,
       "exp_manager.checkpoint_callback_params.use_master_weights_in_ckpt"},
      // trl's SFTConfig: the length of a sample.
      {"max_length max_seq_length", kInteger, "model.encoder_seq_length"},
      {"packing", kBoolean, "model_alignment_strategy.sft.packing"},
  };
}

std::vector<Row> ignored_rows() {
  return {
      {"do_train do_eval do_predict", kIgnored, "a script reads it; eval_strategy decides"},
      {"overwrite_output_dir", kIgnored, "each run has its own folder below exp_manager.exp_dir"},
      {"log_level log_level_replica log_on_each_node logging_first_step disable_tqdm "
       "logging_dir logging_nan_inf_filter include_num_input_tokens_seen "
       "include_tokens_per_second",
       kIgnored, "it chooses what the console and the log show"},
      {"project trackio_space_id trackio_bucket_id trackio_static_space_id", kIgnored,
       "it belongs to Trackio; metrics go to TensorBoard and metrics.jsonl"},
      {"torch_compile torch_compile_backend torch_compile_mode torchdynamo jit_mode_eval", kIgnored,
       "graphs are always compiled, by the emulator's compiler"},
      {"use_liger_kernel liger_kernel_config tf32 torch_empty_cache_steps", kIgnored,
       "it tunes GPUs; the emulator's compiler fuses"},
      {"use_cpu no_cuda use_mps_device use_ipex xpu_backend _n_gpu n_gpu", kIgnored,
       "the option --device chooses the device"},
      {"tpu_num_cores tpu_metrics_debug half_precision_backend fp16_backend fp16_opt_level "
       "past_index ray_scope mp_parameters use_legacy_prediction_loop",
       kIgnored, kOldBackend},
      {"use_cache", kIgnored, "keys and values are kept for generation only"},
      {"per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps", kIgnored,
       "validation has batches of data.micro_batch_size; its mean loss is the same"},
      {"prediction_loss_only eval_do_concat_batches eval_use_gather_object include_for_metrics "
       "batch_eval_metrics include_inputs_for_metrics",
       kIgnored, "validation computes the loss, and no other metric from predictions"},
      {"save_on_each_node save_safetensors", kIgnored,
       "a checkpoint has one form: each rank writes its part of it"},
      {"enable_jit_checkpoint", kIgnored, "SIGTERM always ends a run cleanly"},
      {"hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
       "push_to_hub_model_id push_to_hub_organization push_to_hub_token",
       kIgnored, "nothing is sent to the hub"},
      {"full_determinism", kIgnored, "every run is deterministic"},
      {"restore_callback_states_from_checkpoint", kIgnored, "no callback keeps a state"},
      {"dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
       "dataloader_multiprocessing_context dataloader_in_order dataloader_prefetch_size",
       kIgnored, "data.num_workers alone decides how batches are read ahead"},
      {"dataloader_drop_last", kIgnored, "a step always has data.global_batch_size samples"},
      {"remove_unused_columns label_names length_column_name", kIgnored,
       "the names of the columns are fixed: input_ids, attention_mask, labels"},
      {"average_tokens_across_devices", kIgnored,
       "the same loss when samples fill the sequence, as data for pre-training do"},
      {"ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph ddp_backend", kIgnored,
       "it belongs to torch's DistributedDataParallel; ranks reduce gradients themselves"},
      {"ddp_timeout", kIgnored, "--timeout names a rank that is missing at a communication"},
      {"local_rank", kIgnored, "the launcher gives each rank its number"},
      {"debug skip_memory_metrics", kIgnored, "it looks at the run and changes nothing in it"},
      {"gradient_checkpointing_kwargs activation_checkpointing_kwargs", kIgnored,
       "there is one way to recompute: layer by layer"},
      {"recompute_causal_mask", kIgnored, "attention is causal, and its mask is never stored"},
      {"skip_cache_push neuron_cc_optlevel neuron_cc_flags_model_type", kIgnored,
       "the emulator's compiler has no flags and keeps its programs in memory"},
      {"checkpoint_dir", kIgnored, "exp_manager.resume_from_checkpoint names it"},
  };
}

std::vector<Row> neutral_rows() {
  return {
      {"optim_target_modules", kNeutral,
       "low-rank projections of gradients (GaLore, APOLLO) are not supported; use adamw_torch",
       "null"},
      {"optim_args", kNeutral, "write the optimizer's arguments in section model.optim", "null"},
      {"label_smoothing_factor", kNeutral, "the loss is plain cross entropy; set it to 0", "0"},
      {"neftune_noise_alpha", kNeutral, "embeddings get no noise (NEFTune); set it to null",
       "null|0"},
      {"fp16", kNeutral, "training in fp16 is not supported; set bf16 to true", "false"},
      {"bf16_full_eval fp16_full_eval", kNeutral,
       "validation has the precision of training; set it to false", "false"},
      {"auto_find_batch_size", kNeutral,
       "the batch size is fixed; `trellis sweep` finds the largest that fits", "false"},
      {"push_to_hub", kNeutral,
       "nothing is sent to the hub; `trellis checkpoint export-hf` writes what can be sent",
       "false"},
      {"load_best_model_at_end", kNeutral,
       "the last weights stay; save_strategy best keeps the best checkpoint", "false"},
      {"ignore_data_skip", kNeutral, "a resumed run always goes on with the next samples", "false"},
      {"eval_delay", kNeutral, "validation starts with the first interval; set it to 0", "0"},
      {"group_by_length", kNeutral, "samples are not grouped by length; set it to false", "false"},
      {"train_sampling_strategy", kNeutral, "samples are drawn at random; set it to random",
       "random"},
      {"fsdp_min_num_params", kNeutral, "the units of distributed_strategy.fsdp are layers",
       "0|null"},
      {"fsdp_transformer_layer_cls_to_wrap", kIgnored,
       "the units of distributed_strategy.fsdp are layers"},
      {"deepspeed", kNeutral,
       "there is no DeepSpeed: distributed_strategy.zero1 is its stage 1; stages 2 and 3 and "
       "offloading have no equivalent",
       "null"},
      {"parallelism_config", kNeutral,
       "write its sizes in section distributed_strategy, tp_size as tensor_model_parallel_size "
       "and cp_size as context_parallel_size",
       "null"},
      {"sharded_ddp", kNeutral, "write distributed_strategy.zero1", "null|false"},
      {"dispatch_batches", kNeutral, "each rank reads its own part of the data", "null|false"},
      {"split_batches", kNeutral, "a batch size is that of one rank", "null|false"},
      {"parallelize_embeddings", kNeutral, "embeddings are always cut over the ranks of TP",
       "true|null"},
  };
}

}  // namespace

const std::vector<Row>& argument_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all = direct_rows();
    for (const std::vector<Row>& more : {ignored_rows(), neutral_rows()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return rows;
}

}  // namespace trellis::analysis::hugging_face
