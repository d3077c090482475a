#include "analysis/import/megatron_table.h"

namespace trellis::analysis {
namespace {

using enum MegatronRow::Values;
using enum MegatronRow::Does;

constexpr MegatronRow kIgnoredRows[] = {
    {kNone,
     "no-fp8-wgrad disable-fp8-wgrad first-last-layers-bf16 use-kitchen-attention "
     "moe-router-padding-for-quantization moe-router-padding-for-fp8 "
     "reuse-grad-buf-for-mxfp8-param-ag keep-fp8-transpose-cache",
     kIgnored, "", "only training in fp8 or fp4 reads it"},
    {kOne,
     "fp8-recipe fp8-margin fp8-interval fp8-amax-history-len fp8-amax-compute-algo "
     "num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 kitchen-attention-backend "
     "fp4-recipe fp8-wgrad",
     kIgnored, "", "only training in fp8 or fp4 reads it"},
    {kNone, "cache-mla-latents mla-down-proj-fusion", kIgnored, "",
     "only --multi-latent-attention reads it"},
    {kOne,
     "q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim "
     "rotary-scaling-factor mscale mscale-all-dim",
     kIgnored, "", "only --multi-latent-attention reads it"},
    {kNone, "mtp-use-repeated-layer mtp-detach-heads mtp-hsm", kIgnored, "",
     "only multi-token prediction (--mtp-num-layers) reads it"},
    {kOne, "mtp-loss-scaling-factor", kIgnored, "",
     "only multi-token prediction (--mtp-num-layers) reads it"},
    {kNone, "disable-mamba-mem-eff-path gdp-cutedsl-kernel", kIgnored, "",
     "only layers of Mamba or of gated delta nets read it"},
    {kOne,
     "mamba-inference-conv-states-dtype mamba-inference-ssm-states-dtype "
     "linear-conv-kernel-dim linear-key-head-dim linear-value-head-dim "
     "linear-num-key-heads linear-num-value-heads mamba-state-dim mamba-head-dim "
     "mamba-num-groups mamba-num-heads gdp-num-householder "
     "gdp-num-chunk-states-to-recompute mamba-training-ssm-states-dtype",
     kIgnored, "", "only layers of Mamba or of gated delta nets read it"},
    {kNone,
     "dsa-indexer-use-sparse-loss dsa-indexer-rope-interleaved "
     "no-dsa-indexer-rotate-activation disable-dsa-indexer-rotate-activation "
     "no-dsa-indexer-scoring-relu disable-dsa-indexer-scoring-relu dsa-indexer-k-norm-fp32",
     kIgnored, "", "only --experimental-attention-variant dsa reads it"},
    {kOne,
     "dsa-indexer-n-heads dsa-indexer-head-dim dsa-indexer-topk dsa-indexer-topk-freq "
     "dsa-indexer-skip-topk-offset dsa-indexer-loss-coeff dsa-kernel-backend "
     "dsa-indexer-k-norm-epsilon",
     kIgnored, "", "only --experimental-attention-variant dsa reads it"},
    {kOne, "qk-clip-alpha qk-clip-threshold", kIgnored, "", "only --qk-clip reads it"},
    {kOne,
     "mup-width-mult mup-base-hidden-size mup-embedding-mult mup-output-mult "
     "mup-base-head-dim mup-attn-scale-power",
     kIgnored, "", "only --use-mup reads it"},
    {kOne,
     "mhc-num-residual-streams mhc-sinkhorn-iterations mhc-init-gating-factor "
     "mhc-recompute-layer-num",
     kIgnored, "", "only --enable-mhc-connections reads it"},
    {kList, "mrope-section", kIgnored, "",
     "only positions of YaRN or of other kinds that are not supported read it"},
    {kNone, "yarn-correction-range-round-to-int no-yarn-correction-range-round-to-int", kIgnored,
     "", "only positions of YaRN or of other kinds that are not supported read it"},
    {kOne,
     "yarn-original-max-position-embeddings yarn-beta-fast yarn-beta-slow "
     "relative-attention-num-buckets relative-attention-max-distance",
     kIgnored, "", "only positions of YaRN or of other kinds that are not supported read it"},
    {kOne, "moe-router-bias-update-rate moe-router-quantile-balancing-ema", kIgnored, "",
     "only --moe-router-enable-expert-bias reads it"},
    {kOne, "moe-upcycling-granularity", kIgnored, "", "only --moe-use-upcycling reads it"},
    {kNone, "moe-pad-expert-input-to-capacity moe-pad-experts-for-cuda-graph-inference", kIgnored,
     "", "how slots of experts are padded does not change the result"},
    {kNone,
     "moe-shared-expert-overlap use-grouped-gemm-for-shared-expert "
     "use-grouped-gemm-for-dense-mlp moe-grouped-gemm moe-use-grouped-tensor "
     "moe-single-grouped-weight moe-single-grouped-bias moe-enable-deepep "
     "moe-permute-fusion-into-hybridep moe-hybridep-pad-uneven-dispatch-inputs "
     "moe-permute-fusion moe-router-fusion moe-ncclep-zero-copy moe-paged-stash "
     "moe-extended-tp expert-parallel",
     kIgnored, "",
     "which kernel or dispatcher moves tokens between experts does not change the result"},
    {kOne,
     "moe-shared-expert-glu-interleave-size moe-router-dtype moe-token-dispatcher-type "
     "moe-flex-dispatcher-backend moe-flex-dispatcher-num-sms moe-deepep-num-sms "
     "moe-hybridep-num-sms moe-hybridep-num-blocks-permute "
     "moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms-preprocessing "
     "moe-dispatch-fwd-dtype moe-combine-bwd-dtype moe-mlp-glu-interleave-size "
     "moe-paged-stash-page-size moe-paged-stash-buffer-size-factor-cuda "
     "moe-paged-stash-buffer-size-factor-cpu",
     kIgnored, "",
     "which kernel or dispatcher moves tokens between experts does not change the result"},
    {kNone,
     "moe-per-layer-logging moe-routing-trace-capture-logits "
     "moe-routing-trace-capture-hidden-states moe-routing-trace-dump-weights",
     kIgnored, "", "routing is recorded by this program's own report"},
    {kOne,
     "moe-routing-trace-path moe-routing-trace-max-training-iters "
     "save-tokens-per-expert-interval",
     kIgnored, "", "routing is recorded by this program's own report"},
    {kNone,
     "init-model-with-meta-device no-strict-fsdp-dtensor-load "
     "disable-strict-fsdp-dtensor-load gtp-remat-reduce-scatter-with-fp32-accumulation "
     "gtp-remat-nccl-ub gtp-expert-remat-nccl-ub fsdp-manual-registration "
     "create-all-gather-group fsdp-double-buffer enable-full-sharding-in-hsdp "
     "torch-fsdp2-no-reshard-after-forward megatron-fsdp-enable-fine-grained-param-gather "
     "megatron-fsdp-max-pool-double-buffer fsdp-db-use-persist-buf-on-alloc-fail",
     kIgnored, "", "only sharding of weights (FSDP, GTP) reads it"},
    {kOne,
     "megatron-fsdp-version data-parallel-sharding-strategy outer-dp-sharding-strategy "
     "suggested-communication-unit-size megatron-fsdp-main-params-dtype "
     "megatron-fsdp-main-grads-dtype megatron-fsdp-grad-comm-dtype",
     kIgnored, "", "only sharding of weights (FSDP, GTP) reads it"},
    {kList, "offload-modules", kIgnored, "", "only offloading reads it, which is not supported"},
    {kNone, "cpu-offloading-retain-pinned-cpu-buffers delay-offload-until-cuda-graph", kIgnored, "",
     "only offloading reads it, which is not supported"},
    {kOne,
     "min-offloaded-tensor-size delta-offload-bytes-across-pp-ranks "
     "activation-offload-fraction fine-grained-offloading-max-inflight-offloads",
     kIgnored, "", "only offloading reads it, which is not supported"},
    {kNone,
     "use-torch-optimizer-for-cpu-offload overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads "
     "no-pin-cpu-params",
     kIgnored, "", "only --optimizer-cpu-offload reads it"},
    {kOne, "optimizer-offload-fraction", kIgnored, "", "only --optimizer-cpu-offload reads it"},
    {kOne, "main-grads-dtype main-params-dtype exp-avg-dtype exp-avg-sq-dtype", kIgnored, "",
     "only --use-precision-aware-optimizer reads it"},
    {kNone, "muon-no-split-qkv muon-nesterov muon-use-syrk no-use-layer-wise-param-layout",
     kIgnored, "", "only an optimizer that is not supported reads it"},
    {kOne,
     "muon-momentum muon-scale-mode muon-fp32-matmul-prec muon-coefficient-type "
     "muon-num-ns-steps muon-tp-mode muon-extra-scale-factor muon-scalar-optimizer "
     "lion-beta1 lion-beta2 no-weight-decay-cond-type",
     kIgnored, "", "only an optimizer that is not supported reads it"},
    {kNone, "override-opt-param-scheduler use-checkpoint-opt-param-scheduler", kIgnored, "",
     "a run that goes on has the schedule of its configuration"},
    {kNone, "no-log-loss-scale-to-tensorboard disable-log-loss-scale-to-tensorboard", kIgnored, "",
     "bf16 needs no scaling of the loss"},
    {kOne, "loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis", kIgnored,
     "", "bf16 needs no scaling of the loss"},
    {kList, "ddp-param-name-patterns-for-fp32-local-accumulation", kIgnored, "",
     "softmax and sums of gradients have the types of section precision"},
    {kNone,
     "disable-bf16-reduced-precision-matmul attention-softmax-in-fp32 "
     "accumulate-allreduce-grads-in-fp32 ddp-reduce-scatter-with-fp32-accumulation",
     kIgnored, "", "softmax and sums of gradients have the types of section precision"},
    {kOne, "output-logit-dtype", kIgnored, "",
     "softmax and sums of gradients have the types of section precision"},
    {kList, "validation-set-names", kIgnored, "", "only --multiple-validation-sets reads it"},
    {kList, "finetune-data-split finetune-data-files", kIgnored, "", "only --sft reads it"},
    {kOne, "chat-template sft-tokenizer-prompt-format", kIgnored, "", "only --sft reads it"},
    {kList, "rl-inference-parsers", kIgnored, "", "only --perform-rl-step reads it"},
    {kNone,
     "rl-durable-rollout-bank grpo-filter-groups-with-same-reward "
     "rl-offload-optimizer-during-inference rl-profile",
     kIgnored, "", "only --perform-rl-step reads it"},
    {kOne,
     "rl-prompts-per-eval grpo-prompts-per-step grpo-group-size rl-generation-lag "
     "rl-max-inflight-requests rl-submission-granularity rl-consumption-granularity "
     "rl-rollout-bank-dir rl-rollout-bank-max-bytes grpo-iterations grpo-clamp-eps-lower "
     "grpo-clamp-eps-upper grpo-kl-beta grpo-entropy-term-weight langrl-env-config "
     "rl-default-temperature rl-default-top-p rl-default-top-k rl-kv-cache-management-mode "
     "rl-persist-cuda-graphs rl-partial-rollouts rl-inference-logprobs-is-correction "
     "rl-importance-sampling-truncation-coef rl-use-sequence-packing "
     "rl-sequence-packing-max-sequences-per-bin rl-sequence-packing-algo "
     "rl-training-cuda-graphs rl-inference-tensor-model-parallel-size "
     "rl-inference-pipeline-model-parallel-size rl-inference-expert-model-parallel-size "
     "rl-inference-expert-tensor-model-parallel-size "
     "rl-inference-model-unified-memory-level rl-offload-inference-model-weights-when-idle "
     "refit-method rl-verify-model-weights-swap rl-skip-bos-token rl-profile-dir",
     kIgnored, "", "only --perform-rl-step reads it"},
    {kNone, "logits-load-ignore-errors", kIgnored, "",
     "only distillation reads it, which is not supported"},
    {kOne,
     "logits-save-top-k logits-save-top-p logits-save-top-p-min-k logits-save-dtype "
     "logits-load-decode-threads logits-load-prefetch-factor "
     "logits-load-msc-prefetch-depth logits-load-kd-loss-alpha",
     kIgnored, "", "only distillation reads it, which is not supported"},
    {kOne,
     "fim-rate fim-spm-rate fim-split-sample fim-fragment-rate fim-no-prefix "
     "fim-prefix-token fim-middle-token fim-suffix-token fim-pad-token fim-eod-token",
     kIgnored, "", "only --fim-data reads it"},
    {kNone,
     "dataloader-fast-cache-load dataloader-defer-npy-index-mmap no-mmap-bin-files "
     "no-create-attention-mask-in-dataloader allow-ambiguous-pad-tokens enable-msc "
     "disable-msc mmap-warmup",
     kIgnored, "", "how index files are cached and mapped does not change samples"},
    {kOne,
     "per-dataset-sequences-path num-dataset-builder-threads object-storage-cache-path "
     "mid-level-dataset-surplus data-impl",
     kIgnored, "", "how index files are cached and mapped does not change samples"},
    {kList, "tokenizer-special-tokens", kIgnored, "",
     "data are tokenized already: only the size of the vocabulary counts"},
    {kNone,
     "no-use-tokenizer-model-from-checkpoint-args "
     "disable-use-tokenizer-model-from-checkpoint-args tokenizer-sentencepiece-legacy "
     "no-tokenizer-sentencepiece-ignore-extra-whitespaces "
     "disable-tokenizer-sentencepiece-ignore-extra-whitespaces tokenizer-hf-no-use-fast "
     "tokenizer-hf-no-include-special-tokens trust-remote-code use-gigatoken",
     kIgnored, "", "data are tokenized already: only the size of the vocabulary counts"},
    {kOne,
     "vocab-extra-ids tokenizer-metadata tiktoken-pattern tiktoken-num-special-tokens "
     "null-tokenizer-eod-id null-tokenizer-pad-id",
     kIgnored, "", "data are tokenized already: only the size of the vocabulary counts"},
    {kNone, "no-save-rng no-load-rng", kIgnored, "",
     "random numbers follow from the seed and the step: a checkpoint holds no state of "
     "them"},
    {kOne,
     "non-persistent-ckpt-type non-persistent-global-ckpt-dir "
     "non-persistent-local-ckpt-dir non-persistent-local-ckpt-algo replication-jump "
     "replication-factor",
     kIgnored, "", "only checkpoints outside a directory read it"},
    {kOne,
     "save-params-interval save-activations-interval save-wgrads-interval "
     "save-dgrads-interval",
     kIgnored, "", "tensors of single steps are not saved"},
    {kNone,
     "auto-detect-ckpt-format ckpt-convert-update-legacy-dist-opt-format "
     "no-ckpt-fully-parallel-save use-persistent-ckpt-worker async-ckpt-use-cpu-shm "
     "ckpt-fully-parallel-load ckpt-fully-parallel-load-per-rank-objects "
     "ckpt-assume-constant-structure ckpt-pg-tensors-cache-create "
     "no-ckpt-load-validate-sharding-integrity "
     "disable-ckpt-load-validate-sharding-integrity dist-ckpt-save-pre-mcore-014 "
     "dist-ckpt-optim-fully-reshardable distrib-optim-fully-reshardable-mem-efficient "
     "no-save-tokenizer-assets disable-save-tokenizer-assets verify-integrity "
     "use-dist-ckpt ckpt-fully-parallel-save ckpt-drop-redundant-extra-state",
     kIgnored, "", "checkpoints have NxDT's form, which any layout can read"},
    {kOne,
     "ckpt-format ckpt-convert-format ckpt-convert-save async-strategy "
     "async-ckpt-cpu-priority async-ckpt-io-priority "
     "ckpt-fully-parallel-load-exchange-algo ckpt-fully-parallel-save-process-group "
     "ckpt-fully-parallel-load-process-group ckpt-pg-tensors-cache-path "
     "dist-ckpt-strictness dist-ckpt-format dist-ckpt-workers",
     kIgnored, "", "checkpoints have NxDT's form, which any layout can read"},
    {kList,
     "cuda-graph-scope cuda-graph-modules export-model-type export-legacy-megatron "
     "export-te-mcore-model export-default-te-spec export-force-local-attention "
     "export-kv-cache-quant export-real-quant-cfg export-quant-cfg export-offline-model "
     "modelopt-enabled",
     kIgnored, "", "a kernel of NVIDIA GPUs; the compiler fuses and chooses kernels"},
    {kNone,
     "cross-entropy-loss-fusion use-fused-weighted-squared-relu fused-residual-rmsnorm "
     "use-transformer-engine-op-fuser enable-cuda-graph external-cuda-graph "
     "no-clone-scatter-output-in-embedding disable-clone-scatter-output-in-embedding "
     "batch-invariant-mode use-te-activation-func no-masked-softmax-fusion "
     "no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion "
     "optimizer-cuda-graph no-persist-layer-norm no-gradient-accumulation-fusion "
     "use-mcore-models te-rng-tracker inference-rng-tracker disable-jit-fuser "
     "no-gradient-reduce-div-fusion enable-experimental use-legacy-models "
     "no-query-key-layer-scaling",
     kIgnored, "", "a kernel of NVIDIA GPUs; the compiler fuses and chooses kernels"},
    {kOne,
     "cross-entropy-fusion-impl flash-attention-version cuda-graph-warmup-steps "
     "cuda-graph-impl batch-invariant-backend symmetric-ar-type mlp-chunks-for-prefill "
     "mlp-chunks-for-training transformer-impl onnx-safe",
     kIgnored, "", "a kernel of NVIDIA GPUs; the compiler fuses and chooses kernels"},
    {kList, "high-priority-stream-groups", kIgnored, "",
     "how communications overlap computation is this program's own, and changes no "
     "number"},
    {kNone,
     "tp-comm-overlap no-tp-comm-bulk-wgrad disable-tp-comm-bulk-wgrad "
     "no-tp-comm-bulk-dgrad disable-tp-comm-bulk-dgrad no-tp-comm-overlap-ag "
     "disable-tp-comm-overlap-ag no-tp-comm-overlap-rs disable-tp-comm-overlap-rs "
     "tp-comm-overlap-rs-dgrad no-tp-comm-split-ag disable-tp-comm-split-ag "
     "no-tp-comm-split-rs disable-tp-comm-split-rs overlap-moe-expert-parallel-comm "
     "delay-wgrad-compute overlap-dispatch-backward-with-experts-wgrad "
     "ep-overlap-early-attn-memory-release defer-embedding-wgrad-compute "
     "overlap-p2p-communication-warmup-flush high-priority-a2a-comm-stream "
     "no-align-grad-reduce disable-align-grad-reduce no-overlap-p2p-communication "
     "overlap-grad-reduce ddp-pad-buckets-for-high-nccl-busbw ddp-average-in-collective "
     "overlap-param-gather overlap-param-gather-with-optimizer-step no-align-param-gather "
     "no-async-tensor-model-parallel-allreduce overlap-p2p-communication delay-grad-reduce "
     "no-delay-grad-reduce delay-param-gather no-contiguous-buffers-in-local-ddp "
     "no-scatter-gather-tensors-in-pipeline",
     kIgnored, "",
     "how communications overlap computation is this program's own, and changes no "
     "number"},
    {kOne,
     "tp-comm-bootstrap-backend wgrad-deferral-limit "
     "microbatch-group-size-per-virtual-pipeline-stage tp-comm-overlap-cfg ddp-num-buckets "
     "ddp-bucket-size",
     kIgnored, "",
     "how communications overlap computation is this program's own, and changes no "
     "number"},
    {kNone,
     "use-ring-exchange-p2p nccl-all-reduce-for-prefill lazy-mpu-init "
     "disable-gloo-process-groups use-sharp use-nccl-ub disable-symmetric-registration "
     "fake-process-group",
     kIgnored, "", "collectives are modelled: there is no NCCL, Gloo or SHARP to configure"},
    {kOne,
     "pipeline-model-parallel-comm-backend distributed-backend distributed-timeout-minutes "
     "local-rank nccl-communicator-config-path sharp-enabled-group "
     "distributed-timeout-seconds-after-init DDP-impl",
     kIgnored, "", "collectives are modelled: there is no NCCL, Gloo or SHARP to configure"},
    {kList, "profile-ranks", kIgnored, "",
     "the profiler is that of NVIDIA GPUs; `trellis simulate` writes a trace"},
    {kNone,
     "profile use-pytorch-profiler pytorch-profiler-collect-shapes "
     "pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra "
     "record-memory-history record-shapes nvtx-ranges",
     kIgnored, "", "the profiler is that of NVIDIA GPUs; `trellis simulate` writes a trace"},
    {kOne, "profile-step-start profile-step-end memory-snapshot-path", kIgnored, "",
     "the profiler is that of NVIDIA GPUs; `trellis simulate` writes a trace"},
    {kNone,
     "log-straggler log-throughput log-progress log-timers-to-tensorboard "
     "log-validation-ppl-to-tensorboard log-memory-to-tensorboard log-device-memory-used "
     "log-num-zeros-in-grad log-max-attention-logit no-barrier-with-level-1-timing "
     "log-world-size-to-tensorboard log-energy otel-enabled log-batch-size-to-tensorboard "
     "log-learning-rate-to-tensorboard no-log-learning-rate-to-tensorboard "
     "no-log-learnig-rate-to-tensorboard",
     kIgnored, "", "losses, norms and times are always logged: to TensorBoard and metrics.jsonl"},
    {kOne,
     "config-logger-dir timing-log-level timing-log-option tensorboard-log-interval "
     "tensorboard-queue-size log-memory-interval wandb-project wandb-exp-name "
     "wandb-save-dir wandb-entity logging-level otel-service-name otel-span-groups "
     "train-sync-interval",
     kIgnored, "", "losses, norms and times are always logged: to TensorBoard and metrics.jsonl"},
    {kNone,
     "disable-straggler-on-startup run-workload-inspector-server inprocess-restart "
     "inprocess-empty-cuda-cache no-one-logger one-logger-async enable-ft-package "
     "calc-ft-timeouts exit-signal-handler exit-signal-handler-for-dataloader "
     "exit-signal-handler-for-training no-check-for-nan-in-loss-and-grad "
     "check-for-large-grads check-for-spiky-loss no-flight-recorder-dump-on-timeout "
     "disable-flight-recorder-dump-on-timeout flight-recorder-include-stack-trace "
     "no-flight-recorder-include-only-active disable-flight-recorder-include-only-active "
     "no-flight-recorder-extra-dump-on-exec disable-flight-recorder-extra-dump-on-exec "
     "adlr-autoresume enable-one-logger",
     kIgnored, "", "it watches a cluster's hardware and programs; `trellis` has its own checks"},
    {kOne,
     "straggler-ctrlr-port straggler-minmax-count inprocess-max-iterations "
     "inprocess-monitor-thread-interval inprocess-monitor-process-interval "
     "inprocess-progress-watchdog-interval inprocess-heartbeat-interval "
     "inprocess-soft-timeout inprocess-hard-timeout inprocess-heartbeat-timeout "
     "inprocess-barrier-timeout inprocess-completion-timeout inprocess-last-call-wait "
     "inprocess-termination-grace-time inprocess-granularity inprocess-active-world-size "
     "one-logger-project one-logger-run-name app-tag-run-name app-tag-run-version "
     "ft-num-warmup-iters check-weight-hash-across-dp-replicas-interval "
     "gpu-sniff-test-interval exit-signal result-rejected-tracker-filename "
     "error-injection-rate error-injection-type rerun-mode flight-recorder-dump-path "
     "flight-recorder-trace-buffer-size adlr-autoresume-interval fault-injector-ranks "
     "fault-injector-num-ranks fault-injector-fault-types "
     "fault-injector-fault-probabilities fault-injector-fault-delay "
     "fault-injector-delay-start-iteration fault-injector-mtti-seconds "
     "fault-injector-offset-seconds fault-injector-seed",
     kIgnored, "", "it watches a cluster's hardware and programs; `trellis` has its own checks"},
    {kNone, "manual-gc no-manual-gc-eval disable-manual-gc-eval empty-unused-memory", kIgnored, "",
     "memory is that of a modelled device, and nothing of Python runs in a step"},
    {kOne, "empty-unused-memory-level manual-gc-interval", kIgnored, "",
     "memory is that of a modelled device, and nothing of Python runs in a step"},
    {kNone, "deterministic-mode", kIgnored, "", "every run is deterministic"},
    {kNone, "no-initialization data-parallel-random-init", kIgnored, "",
     "each weight is drawn once, by its name"},
    {kNone,
     "use-legacy-static-engine inference-dynamic-batching "
     "inference-dynamic-batching-track-paused-request-events "
     "inference-dynamic-batching-track-generated-token-events decode-only-cuda-graphs "
     "inference-cuda-graph-all-prefills enable-chunked-prefill "
     "use-same-sampling-seed-across-dp-ranks flash-decode inference-fuse-tp-communication "
     "inference-disable-triton-nvls-kernels inference-moe-disable-fused-quant-kernels",
     kIgnored, "", "nothing generates text during training"},
    {kOne,
     "inference-batch-times-seqlen-threshold max-tokens-to-oom inference-max-requests "
     "inference-max-seq-length inference-dynamic-batching-buffer-size-gb "
     "inference-dynamic-batching-paused-buffer-size-gb "
     "inference-dynamic-batching-mamba-memory-ratio inference-dynamic-batching-block-size "
     "inference-dynamic-batching-max-requests inference-dynamic-batching-max-tokens "
     "inference-dynamic-batching-num-cuda-graphs inference-cuda-graph-max-tokens "
     "inference-dynamic-batching-unified-memory-level num-speculative-tokens "
     "inference-dynamic-batching-prefix-caching "
     "inference-dynamic-batching-prefix-caching-eviction-policy "
     "inference-dynamic-batching-prefix-caching-coordinator-policy "
     "inference-dynamic-batching-prefix-caching-routing-alpha "
     "inference-dynamic-batching-prefix-caching-mamba-gb "
     "inference-dynamic-batching-cuda-graph-mixed-prefill-count "
     "inference-dynamic-batching-cuda-graph-sizing-distribution "
     "inference-dynamic-batching-sampling-backend "
     "inference-dynamic-batching-async-sched-mode inference-dynamic-batching-logprobs-mode "
     "inference-logging-step-interval inference-text-gen-server-logging "
     "inference-wandb-logging inference-coordinator-port "
     "inference-use-synchronous-zmq-collectives inference-disable-ep-consensus "
     "inference-shards inference-cuda-graph-scope inference-grouped-gemm-backend "
     "inference-moe-token-dispatcher-type",
     kIgnored, "", "nothing generates text during training"},
    {kList, "retriever-report-topk-accuracies", kIgnored, "",
     "it belongs to models that pretrain_gpt.py does not build"},
    {kNone,
     "output-bert-embeddings bert-no-binary-head biencoder-shared-query-context-model "
     "use-one-sent-docs retriever-score-scaling no-data-sharding dino-norm-last-layer",
     kIgnored, "", "it belongs to models that pretrain_gpt.py does not build"},
    {kOne,
     "bert-embedder-type mask-prob short-seq-prob ict-head-size biencoder-projection-dim "
     "ict-load bert-load titles-data-path query-in-block-prob evidence-data-path "
     "block-data-path embedding-path indexer-batch-size indexer-log-interval num-classes "
     "img-h img-w num-channels patch-dim classes-fraction data-per-class-fraction "
     "vision-pretraining-type vision-backbone-type swin-backbone-type mask-type "
     "mask-factor iter-per-epoch dino-local-img-size dino-local-crops-number "
     "dino-head-hidden-size dino-bottleneck-size dino-freeze-last-layer "
     "dino-warmup-teacher-temp dino-teacher-temp dino-warmup-teacher-temp-epochs",
     kIgnored, "", "it belongs to models that pretrain_gpt.py does not build"},
    {kNone, "test-mode", kIgnored, "", "it prints or tests only"},
    {kOne, "dump-param-to-param-group-map", kIgnored, "", "it prints or tests only"},
};

}  // namespace

std::span<const MegatronRow> megatron_ignored_rows() { return kIgnoredRows; }

}  // namespace trellis::analysis
