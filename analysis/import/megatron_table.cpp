#include "analysis/import/megatron_table.h"

namespace trellis::analysis {
namespace {

using enum MegatronRow::Values;
using enum MegatronRow::Does;

constexpr MegatronRow kMapped[] = {
    // The model.
    {kOne, "num-layers", kMoves, "model.num_layers"},
    {kOne, "hidden-size", kMoves, "model.hidden_size"},
    {kOne, "num-attention-heads", kMoves, "model.num_attention_heads"},
    {kOne, "kv-channels", kMoves, "model.kv_channels"},
    {kOne, "seq-length encoder-seq-length", kMoves, "model.encoder_seq_length"},
    {kOne, "max-position-embeddings", kMoves, "model.max_position_embeddings"},
    {kOne, "norm-epsilon layernorm-epsilon", kMoves, "model.layernorm_epsilon"},
    {kOne, "init-method-std", kMoves, "model.init_method_std"},
    {kOne, "hidden-dropout", kMoves, "model.hidden_dropout"},
    {kOne, "attention-dropout", kMoves, "model.attention_dropout"},
    {kOne, "rotary-base", kMoves, "model.position_freq_base"},
    {kOne, "rotary-percent", kMoves, "model.rotary_percentage"},
    {kOne, "rotary-seq-len-interpolation-factor", kMoves, "model.positition_interpolation_factor"},
    {kOne,
     "ffn-hidden-size num-query-groups vocab-size padded-vocab-size make-vocab-size-divisible-by "
     "position-embedding-type normalization window-size rope-scaling-factor attention-backend"},
    {kNone,
     "group-query-attention swiglu use-rope-scaling use-flash-attn apply-layernorm-1p "
     "no-position-embedding no-pad-vocab-size disable-pad-vocab-size calculate-per-token-loss"},
    {kNone, "untie-embeddings-and-output-weights", kMoves,
     "model.share_embeddings_and_output_weights", "false"},
    {kNone, "disable-bias-linear", kMoves, "model.has_bias", "false"},
    {kNone, "add-qkv-bias", kMoves, "model.qkv_bias", "true"},
    {kNone, "use-rotary-position-embeddings", kMoves, "model.position_embedding_type", "rope"},
    {kNone, "openai-gelu", kMoves, "model.activation", "openai-gelu"},
    {kNone, "apply-query-key-layer-scaling", kMoves, "model.apply_query_key_layer_scaling", "true"},
    {kNone, "qk-layernorm", kMoves, "model.qk_layernorm", "true"},
    {kNone, "fp32-residual-connection", kMoves, "model.fp32_residual_connection", "true"},
    {kNone, "use-cpu-initialization", kMoves, "model.use_cpu_initialization", "true"},
    {kNone, "fp16-lm-cross-entropy", kMoves, "model.fp16_lm_cross_entropy", "true"},
    {kNone, "recompute-activations checkpoint-activations moe-layer-recompute"},
    {kOne, "recompute-granularity"},
    {kOne, "recompute-method", kMoves, "model.activations_checkpoint_method"},
    {kOne, "recompute-num-layers", kMoves, "model.activations_checkpoint_num_layers"},
    {kList, "recompute-modules"},

    // Experts.
    {kOne, "num-experts moe-ffn-hidden-size moe-layer-freq moe-shared-expert-intermediate-size"},
    {kOne, "moe-router-topk", kMoves, "model.moe.top_k"},
    {kOne, "moe-router-topk-scaling-factor", kMoves, "model.moe.routed_scaling_factor"},
    {kOne, "moe-input-jitter-eps", kMoves, "model.moe.jitter_eps"},
    {kOne, "moe-expert-capacity-factor moe-router-score-function expert-tensor-parallel-size"},
    {kList, "moe-router-load-balancing-type moe-aux-loss-coeff"},
    {kNone, "moe-router-pre-softmax", kMoves, "model.moe.normalize_top_k_affinities", "false"},

    // The layout.
    {kOne, "tensor-model-parallel-size", kMoves, "distributed_strategy.tensor_model_parallel_size"},
    {kOne, "pipeline-model-parallel-size", kMoves,
     "distributed_strategy.pipeline_model_parallel_size"},
    {kOne, "expert-model-parallel-size", kMoves, "distributed_strategy.expert_model_parallel_size"},
    {kNone, "sequence-parallel", kMoves, "distributed_strategy.sequence_parallel", "true"},
    {kNone, "use-distributed-optimizer", kMoves, "distributed_strategy.zero1", "true"},
    {kOne,
     "context-parallel-size num-layers-per-virtual-pipeline-stage "
     "num-virtual-stages-per-pipeline-rank"},
    {kList, "cp-comm-type"},

    // The run.
    {kOne, "micro-batch-size", kMoves, "data.micro_batch_size"},
    {kOne, "global-batch-size", kMoves, "data.global_batch_size"},
    {kOne, "train-iters", kMoves, "trainer.max_steps"},
    {kOne, "train-samples exit-duration-in-mins clip-grad eval-interval eval-iters"},
    {kOne, "log-interval", kMoves, "trainer.log_every_n_steps"},
    {kOne, "seed", kMoves, "seed"},
    {kNone, "bf16 fp16"},
    {kNone, "log-params-norm", kMoves, "exp_manager.log_parameter_norm", "true"},
    {kOne, "tensorboard-dir save load pretrained-checkpoint"},
    {kOne, "save-interval persistent-save-interval", kMoves,
     "exp_manager.checkpoint_callback_params.every_n_train_steps"},
    {kNone, "async-save", kMoves, "exp_manager.async_checkpointing", "true"},
    {kNone, "exit-on-missing-checkpoint", kMoves, "exp_manager.resume_ignore_no_checkpoint",
     "false"},
    {kNone, "finetune no-load-optim"},

    // The optimizer.
    {kOne, "lr", kMoves, "model.optim.lr"},
    {kOne, "min-lr", kMoves, "model.optim.sched.min_lr"},
    {kOne, "weight-decay", kMoves, "model.optim.weight_decay"},
    {kOne,
     "optimizer adam-beta1 adam-beta2 adam-eps sgd-momentum lr-decay-style lr-decay-iters "
     "lr-decay-samples lr-warmup-iters lr-warmup-samples lr-warmup-fraction lr-wsd-decay-style "
     "lr-wsd-decay-iters lr-wsd-decay-samples"},

    // The data.
    {kList, "data-path train-data-path valid-data-path test-data-path"},
    {kOne, "split dataloader-type tokenizer-type tokenizer-model vocab-file merge-file"},
    {kOne, "data-cache-path", kMoves, "data.index_mapping_dir"},
    {kOne, "num-workers", kMoves, "data.num_workers"},
    {kNone, "reset-position-ids", kMoves, "data.reset_position_ids", "true"},
    {kNone, "reset-attention-mask", kMoves, "data.reset_attention_mask", "true"},
    {kNone, "eod-mask-loss", kMoves, "data.eod_mask_loss", "true"},
};

constexpr MegatronRow kLauncher[] = {
    {kOne, "nproc-per-node nnodes"},
    {kOne, "node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf",
     kIgnored, "", "ranks are emulated in one machine and find each other"},
    {kOne,
     "max-restarts monitor-interval start-method role local-addr log-dir redirects tee "
     "local-ranks-filter logs-specs",
     kIgnored, "", "it belongs to torchrun, which starts nothing here"},
    {kNone, "standalone no-python run-path module", kIgnored, "",
     "it belongs to torchrun, which starts nothing here"},
};

}  // namespace

std::span<const MegatronRow> megatron_mapped_rows() { return kMapped; }
std::span<const MegatronRow> launcher_rows() { return kLauncher; }

}  // namespace trellis::analysis
