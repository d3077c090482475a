#include "analysis/import/nemo_table.h"

namespace trellis::analysis {
namespace {

using enum NemoRow::Does;

constexpr std::string_view kGpu = "it tunes NVIDIA GPUs; the compiler of the device fuses";
constexpr std::string_view kOverlap =
    "gradients, states and transfers overlap with computation by distributed_strategy";
constexpr std::string_view kAmp = "bf16 needs no loss scaling";
constexpr std::string_view kNoFp8 = "training in fp8 is not supported";

constexpr std::string_view kEncoder =
    "NeMo's pretraining of BERT, T5 and BART is not supported: choose a decoder, or this program's "
    "model bert with its own keys";

constexpr NemoRow kRows[] = {
    {"defaults hydra hydra.*", kIgnored, "",
     "it is about Hydra itself; directories are exp_manager's"},
    {"cluster_type", kIgnored, "", "the launcher says how processes start: torchrun, srun, mpirun"},

    {"trainer.accelerator", kIgnored, "", "choose the device with --device"},
    {"trainer.logger trainer.enable_checkpointing", kIgnored, "",
     "loggers and checkpoints belong to exp_manager"},
    {"trainer.use_distributed_sampler trainer.replace_sampler_ddp", kIgnored, "",
     "the data module itself gives each rank its part"},
    {"trainer.benchmark trainer.enable_model_summary", kIgnored, "",
     "it tunes CUDA, or prints what `trellis validate` prints"},
    {"trainer.accumulate_grad_batches", kNeutral, "1|null",
     "it is derived: global_batch_size / (micro_batch_size × DP)"},
    {"exp_manager.create_wandb_logger exp_manager.wandb_logger_kwargs", kIgnored, "",
     "metrics go to TensorBoard and metrics.jsonl"},
    {"exp_manager.checkpoint_callback_params.always_save_nemo "
     "exp_manager.checkpoint_callback_params.save_nemo_on_train_end",
     kIgnored, "", "no .nemo archives are written; `trellis checkpoint export-hf` writes models"},

    {"model.tensor_model_parallel_size", kMoves, "distributed_strategy.tensor_model_parallel_size"},
    {"model.pipeline_model_parallel_size", kMoves,
     "distributed_strategy.pipeline_model_parallel_size"},
    {"model.context_parallel_size", kMoves, "distributed_strategy.context_parallel_size"},
    {"model.expert_model_parallel_size", kMoves, "distributed_strategy.expert_model_parallel_size"},
    {"model.sequence_parallel", kMoves, "distributed_strategy.sequence_parallel"},
    {"model.wrap_with_zero", kMoves, "distributed_strategy.zero1"},
    {"model.micro_batch_size", kMoves, "data.micro_batch_size"},
    {"model.global_batch_size", kMoves, "data.global_batch_size"},
    {"model.rampup_batch_size", kNeutral, "null", "the batch has one size for the whole run"},
    {"model.seed", kMoves, "seed"},
    {"model.resume_from_checkpoint", kMoves, "exp_manager.resume_from_checkpoint"},
    {"model.save_xser", kMoves, "exp_manager.save_xser"},
    {"model.load_xser", kMoves, "exp_manager.load_xser"},
    {"model.async_checkpointing", kMoves, "exp_manager.async_checkpointing"},
    {"model.log_parameter_norm", kMoves, "exp_manager.log_parameter_norm"},
    {"model.log_gradient_norm", kMoves, "exp_manager.log_gradient_norm"},
    {"model.enable_recovery_time_instrumentation", kMoves,
     "exp_manager.enable_recovery_time_instrumentation"},
    {"model.num_query_groups", kMoves, "model.num_kv_heads"},
    {"model.bias", kMoves, "model.has_bias"},
    {"model.rotary_base", kMoves, "model.rope_theta"},
    {"model.window_size", kNeutral, "null",
     "a sliding window is model.sliding_window_size, one number of tokens"},
    {"model.flexible_pipeline_parallel_stages", kNeutral, "null",
     "name the cuts in model.pipeline_cuts"},
    {"model.convert_to_hf", kIgnored, "", "`trellis checkpoint export-hf` converts"},

    {"model.num_moe_experts", kMoves, "model.moe.num_experts"},
    {"model.moe_router_topk", kMoves, "model.moe.top_k"},
    {"model.moe_input_jitter_eps", kMoves, "model.moe.jitter_eps"},
    {"model.moe_expert_capacity_factor", kMoves, "model.moe.capacity_factor"},
    {"model.moe_z_loss_coeff", kNeutral, "0|null", "routers have no z-loss here"},
    {"model.moe_token_dropping", kNeutral, "false|null",
     "set model.moe.capacity_factor and dropless: false"},
    {"model.moe_grouped_gemm model.moe_token_dispatcher_type model.moe_per_layer_logging "
     "model.moe_layer_recompute model.moe_pad_expert_input_to_capacity",
     kIgnored, "", "experts have one implementation here; loads are in metrics and report"},
    {"model.moe_router_pre_softmax model.moe_token_drop_policy", kIgnored, "",
     "affinities are normalised by model.moe.normalize_top_k_affinities; tokens beyond an expert's "
     "capacity are dropped in their order"},

    {"model.mcore_gpt model.mcore_bert model.mcore_t5 model.megatron_legacy "
     "model.transformer_engine model.name model.target",
     kIgnored, "", "there is one implementation of each model"},
    {"model.pre_process model.post_process", kIgnored, "",
     "the first stage always embeds, the last one always has the head"},
    {"model.persist_layer_norm model.masked_softmax_fusion model.bias_activation_fusion "
     "model.bias_dropout_add_fusion model.gradient_accumulation_fusion model.grad_div_ar_fusion "
     "model.apply_rope_fusion model.get_attention_mask_from_fusion model.use_emha "
     "model.ub_tp_comm_overlap* model.tp_comm_* model.gc_interval model.nccl_* model.sharp "
     "model.enable_cuda_graph model.use_cpu_initialization model.defer_embedding_wgrad_compute "
     "model.wgrad_deferral_limit model.cross_entropy_loss_fusion model.cpu_offloading* "
     "model.memory_efficient_layer_norm",
     kIgnored, "", kGpu},
    {"model.overlap_p2p_comm model.batch_p2p_comm model.grad_allreduce_chunk_size_mb "
     "model.gradient_as_bucket_view model.sync_batch_comm model.optim.bucket_cap_mb "
     "model.optim.overlap_grad_sync model.optim.overlap_param_sync "
     "model.optim.contiguous_grad_buffer model.optim.contiguous_param_buffer "
     "model.optim.grad_sync_dtype",
     kIgnored, "", kOverlap},
    {"model.native_amp_init_scale model.native_amp_growth_interval model.hysteresis", kIgnored, "",
     kAmp},
    {"model.onnx_safe model.apex_transformer_log_level model.enable_megatron_timers "
     "model.megatron_timer_kwargs* "
     "model.megatron_timer_options model.nsys_profile* model.log_*",
     kIgnored, "", "NxDT removed it; `trellis simulate` writes a trace"},
    {"model.headscale model.normalize_attention_scores model.openai_gelu model.onnx_gelu", kNeutral,
     "false|true|null", "the model families here do not vary in it"},
    {"model.attention_type", kNeutral, "multihead|null", "attention is multi-head or grouped"},
    {"model.use_flash_attention", kMoves, "model.fusions.flash_attention"},
    {"model.seq_len_interpolation_factor", kMoves, "model.positition_interpolation_factor"},
    {"model.fp8 model.fp8_e4m3 model.fp8_hybrid model.fp8_params", kNeutral, "false|null", kNoFp8},
    {"model.fp8_margin model.fp8_interval model.fp8_amax_history_len model.fp8_amax_compute_algo "
     "model.reduce_amax",
     kIgnored, "", kNoFp8},
    {"model.fsdp", kMoves, "distributed_strategy.fsdp"},
    {"model.fsdp_sharding_strategy", kNeutral, "full|null",
     "distributed_strategy.fsdp shards weights, gradients and states over all data-parallel ranks; "
     "for copies of the whole (hybrid) write distributed_strategy.data_parallel_replicate_size"},
    {"model.fsdp_*", kIgnored, "", "it belongs to model.fsdp"},
    {"model.dist_ckpt_parallel_save", kMoves, "model.dist_ckpt_parallel_save"},
    {"model.dist_ckpt_parallel_load", kMoves, "model.dist_ckpt_parallel_load"},
    {"model.dist_ckpt_assume_constant_structure", kMoves,
     "model.dist_ckpt_assume_constant_structure"},
    {"model.dist_ckpt_load_strictness", kMoves, "model.dist_ckpt_load_strictness"},
    {"model.dist_ckpt_*", kIgnored, "",
     "checkpoints are written in NxD's layout and resharded at load"},
    {"model.mcore_customization_config.*", kNeutral, "false|null",
     "capped logits, parallel attention and own scales of queries are not supported"},
    {"model.specify_mcore model.mcore_customization_config model.hidden_act", kIgnored, "",
     "the architecture's keys say it"},

    {"enable_recovery_time_instrumentation", kMoves,
     "exp_manager.enable_recovery_time_instrumentation"},
    {"async_checkpointing", kMoves, "exp_manager.async_checkpointing"},
    {"enable_checkpoint_removal_protection", kIgnored, "",
     "exp_manager.checkpoint_callback_params says which checkpoints are removed"},
    {"model.output_dir model.config_path", kIgnored, "",
     "NNM's converters read it; `trellis checkpoint` converts"},
    {"model.save_logits_interval", kNeutral, "0|null", "logits are not saved during a run"},
    {"model.restore_from_path model.restore_from_ckpt", kNeutral, "null",
     "write the weights with `trellis checkpoint convert`, and start with --init-from"},
    {"model.override_vocab_size", kMoves, "model.vocab_size"},
    {"model.rotary_interleaved model.layernorm_zero_centered_gamma model.apply_embedding_scaling",
     kNeutral, "false|null", "the model families here do not have it"},
    {"model.tokenizer.trust_remote_code", kIgnored, "", "no code of a tokenizer is executed"},
    {"model.data.chat", kNeutral, "false|null", "chats are data of fine-tuning: see its guide"},
    {"model.data.ceil_to_power_2 model.data.pad_to_max_length "
     "model.data.get_attention_mask_from_fusion",
     kIgnored, "", "samples are padded as the data module says"},

    {"model.data.mmap_bin_files model.data.num_dataset_builder_threads", kIgnored, "",
     "it tunes how the same samples are read"},
    {"model.data.data_cache_generation_only model.skip_train model.reset_lr model.reset_lr_steps "
     "model.drop_layers model.scale_positional_embedding",
     kNeutral, "false|null|0", "a run trains the whole model, with one schedule"},
    {"model.validation_param_sync_overlap", kIgnored, "", kOverlap},
    {"s3_checkpointing.*", kIgnored, "", "a folder s3://… of exp_manager is written in parts"},

    {"model.add_pooler model.add_lm_head model.bert_binary_head model.data.masked_lm_prob "
     "model.data.short_seq_prob",
     kNeutral, "null", kEncoder},
    {"model.seq_length model.share_token_embeddings model.share_decoder_tokens_head_embeddings "
     "model.tokens_head_bias model.embedding_dropout "
     "model.embedding_init_method_std model.pipeline_model_parallel_split_rank model.encoder.* "
     "model.decoder.* model.data.dataset_type model.data.seq_length_dec model.data.permutation "
     "model.data.delete_mask_prob model.data.favor_longer_ngrams "
     "model.data.max_ngram_size model.data.mean_ngram_size model.data.geometric_dist "
     "model.data.respect_document_boundaries model.data.whole_word_masking "
     "model.tokenizer.num_sentinel_tokens",
     kNeutral, "null", kEncoder},
    {"model.hybrid_override_pattern model.mamba_* model.activations_checkpoint_recurrent "
     "model.add_bias_linear model.gated_linear_unit",
     kNeutral, "null", "state-space models such as Mamba are not supported: choose a decoder"},

    {"model.peft.lora_tuning.variant", kNeutral, "nemo|null",
     "adapters are NeMo's own form: one for query, key and value together"},
    {"model.peft.lora_tuning.column_init_method", kNeutral, "xavier|null",
     "A begins with Kaiming's uniform numbers, as PEFT's does"},
    {"model.peft.lora_tuning.row_init_method", kNeutral, "zero|null", "B begins with zeros"},
    {"model.peft.lora_tuning.layer_selection model.peft.lora_tuning.position_embedding_strategy "
     "model.peft.lora_tuning.a2a_experimental",
     kNeutral, "null|false", "every layer has adapters, each its own"},
    {"model.peft.lora_tuning.weight_tying", kNeutral, "false|null",
     "every layer has its own adapters"},
    {"model.peft.restore_from_path model.peft.restore_from_ckpt.*", kNeutral, "null",
     "saved adapters: model_alignment_strategy.peft.load_lora_from_ckpt"},
    {"model.peft.p_tuning* model.peft.adapter_tuning* model.peft.ia3_tuning* "
     "model.peft.selective_tuning*",
     kIgnored, "", "only its own model.peft.peft_scheme reads it"},
    {"model.answer_only_loss", kNeutral, "true|null", "the loss is of answers alone"},
    {"model.ffn_dropout", kNeutral, "0|0.0|null", "feed-forward layers have no dropout"},
    {"model.save_nemo_on_validation_end", kIgnored, "",
     "no .nemo archives are written; `trellis checkpoint export-hf` writes models"},
    {"inference inference.* model.inference model.inference.*", kIgnored, "",
     "`trellis evaluate` decodes, with its own options"},
    {"model.data.train_ds.num_workers", kMoves, "data.num_workers"},
    {"model.data.train_ds.* model.data.validation_ds.* model.data.test_ds.*", kNeutral, "null|[]",
     "it describes NeMo's records of fine-tuning: see the guide of fine-tuning data for this "
     "program's keys"},
    {"model.data.data_impl", kIgnored, "", "indexed data is mapped into memory"},
    {"model.data.reset_attention_mask", kNeutral, "false|null",
     "attention is causal over the whole sequence"},
    {"model.data.mock_dataset model.data.add_fim", kNeutral, "false|null",
     "every run reads data; fill-in-the-middle is not supported"},
    {"model.data.fim model.data.retro_data model.data.fim.* model.data.fim_*", kIgnored, "",
     "it belongs to a kind of data that is not supported"},
};

}  // namespace

std::span<const NemoRow> nemo_rows() { return kRows; }

}  // namespace trellis::analysis
