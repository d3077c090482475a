// Broken files, one rule each: what stands where, the rule with its numbers, what to do.
#include <gmock/gmock.h>

#include "tests/trainer/config/base_config.h"

namespace trellis::trainer {
namespace {

using Change = std::pair<const char*, const char*>;

struct Broken {
  std::vector<Change> changes;  ///< a piece of the base configuration, and what stands there instead
  const char* expected;         ///< the whole text
};

const std::vector<Broken>& broken_files() {
  static const std::vector<Broken> files = {
    // Layouts.
    {{{"num_layers: 4", "num_layers: 80"},
      {"devices: 8", "devices: 64"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 16\n  virtual_pipeline_model_parallel_size: 2"},
      {"global_batch_size: 16", "global_batch_size: 64"}},
     "run.yaml:21:model.num_layers: 80 is not divisible by pipeline_model_parallel_size 16 × virtual_pipeline_model_parallel_size 2 = 32 (5 "
     "layers per rank do not make 2 equal virtual stages); nearest legal values: 64 or 96"},
    {{{"num_layers: 4", "num_layers: 30"}, {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 4"}},
     "run.yaml:20:model.num_layers: 30 is not divisible by pipeline_model_parallel_size 4; nearest legal values: 28 or 32"},
    {{{"model_source: megatron", "model_source: hf"},
      {"num_layers: 4", "num_layers: 3"},
      {"  sequence_parallel: true", "  sequence_parallel: true\n  virtual_pipeline_model_parallel_size: 2"}},
     "run.yaml:21:model.num_layers: 3 layers are too few for pipeline_model_parallel_size 2 × virtual_pipeline_model_parallel_size 2 = 4 "
     "stages: each needs at least one"},
    {{{"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1\n  virtual_pipeline_model_parallel_size: 2"}},
     "run.yaml:13:distributed_strategy.virtual_pipeline_model_parallel_size: 2 needs pipeline_model_parallel_size > 1, whose bubble virtual "
     "stages make smaller, got 1; set it to 1 or raise pipeline_model_parallel_size"},
    {{{"global_batch_size: 16", "global_batch_size: 4"}},
     "run.yaml:16:data.global_batch_size: 1 micro-batches = global_batch_size 4 / (micro_batch_size 2 × DP 2) do not fill "
     "pipeline_model_parallel_size 2; raise it to at least 8, or lower the number of stages"},
    {{{"global_batch_size: 16", "global_batch_size: 12"},
      {"  sequence_parallel: true", "  sequence_parallel: true\n  virtual_pipeline_model_parallel_size: 2"}},
     "run.yaml:17:data.global_batch_size: 12 is not divisible by micro_batch_size 2 × DP 2 × pipeline_model_parallel_size 2 = 8, as virtual "
     "stages need (3 micro-batches in rounds of 2); nearest legal values: 8 or 16"},
    {{{"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 8"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"}},
     "run.yaml:23:model.num_attention_heads: 4 is not divisible by tensor_model_parallel_size 8; nearest legal values: 8"},
    {{{"model_source: megatron", "model_source: hf"},
      {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 4"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"}},
     "run.yaml:24:model.num_kv_heads: 2 is not divisible by tensor_model_parallel_size 4; hold each 2 times: qkv_linear: true and "
     "distributed_strategy.kv_replicator: 2"},
    {{{"model_source: megatron", "model_source: hf"},
      {"  sequence_parallel: true", "  sequence_parallel: true\n  kv_replicator: 2"}},
     "run.yaml:14:distributed_strategy.kv_replicator: 2 needs model.qkv_linear: true, whose layer replicates; write it, or set this to 1"},
    {{{"model_source: megatron", "model_source: hf"},
      {"  sequence_parallel: true", "  sequence_parallel: true\n  kv_replicator: 3"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
     "run.yaml:14:distributed_strategy.kv_replicator: 3 must divide tensor_model_parallel_size 2; nearest legal values: 2"},
    {{{"model_source: megatron", "model_source: hf"},
      {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 8"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
      {"num_attention_heads: 4", "num_attention_heads: 8"},
      {"num_kv_heads: 2", "num_kv_heads: 1"},
      {"hidden_size: 64", "hidden_size: 64"},
      {"sequence_parallel: true", "sequence_parallel: true\n  kv_replicator: 2"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
     "run.yaml:14:distributed_strategy.kv_replicator: num_kv_heads 1 × kv_replicator 2 = 2 is not divisible by tensor_model_parallel_size 8; "
     "legal values: 8"},
    {{{"model_source: megatron", "model_source: hf"},
      {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 4"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
      {"sequence_parallel: true", "sequence_parallel: true\n  kv_replicator: 4"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
     "run.yaml:14:distributed_strategy.kv_replicator: num_attention_heads 4 is not divisible by num_kv_heads 2 × kv_replicator 4 = 8, so that copies would "
     "serve unequal numbers of query heads; legal values: 2"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
     "run.yaml:27:model.qkv_linear: belongs to model_source hf: Megatron models have their own query-key-value projection"},
    {{{"model_source: megatron", "model_source: hf"}, {"  make_vocab_size_divisible_by: 8", "  vocab_size: 1001"}},
     "run.yaml:27:model.vocab_size: 1001 is not divisible by tensor_model_parallel_size 2, and hf models are not padded; nearest legal "
     "values: 1000 or 1002, or write make_vocab_size_divisible_by: 1 to pad it"},
    {{{"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 16"},
      {"num_attention_heads: 4", "num_attention_heads: 16"},
      {"num_kv_heads: 2", "num_kv_heads: 16"},
      {"hidden_size: 64", "hidden_size: 512"}},
     "run.yaml:11:distributed_strategy.tensor_model_parallel_size: 16 exceeds the world size 8 = devices 8 × num_nodes 1; lower it or add "
     "ranks"},
    {{{"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 2\n  context_parallel_size: 2"}},
     "run.yaml:13:distributed_strategy.context_parallel_size: 2 needs model.fusions.ring_attention: true (and flash_attention: false)"},
    {{{"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 2\n  context_parallel_size: 2"},
      {"encoder_seq_length: 32", "encoder_seq_length: 34"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fusions: {ring_attention: true}"}},
     "run.yaml:26:model.encoder_seq_length: 34 is not divisible by tensor_model_parallel_size 2 × context_parallel_size 2 = 4, as "
     "sequence_parallel needs; nearest legal values: 32 or 36"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fusions: {ring_attention: true, flash_attention: true}"}},
     "run.yaml:27:model.fusions.ring_attention: excludes flash_attention; set one of them to false"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  expert_model_parallel_size: 2"}},
     "run.yaml:14:distributed_strategy.expert_model_parallel_size: 2 needs section model.moe; set it to 1"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  expert_model_parallel_size: 4"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
     "run.yaml:14:distributed_strategy.expert_model_parallel_size: 4 must divide DP 2 × CP 1 = 2; nearest legal values: 2"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  expert_model_parallel_size: 2"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 3}"}},
     "run.yaml:14:distributed_strategy.expert_model_parallel_size: 2 must divide model.moe.num_experts 3; nearest legal values: 1 or 3"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  token_shuffle_group_size: 3"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
     "run.yaml:14:distributed_strategy.token_shuffle_group_size: 3 must divide DP 2; nearest legal values: 2"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  token_shuffle_group_size: 2"}},
     "run.yaml:14:distributed_strategy.token_shuffle_group_size: 2 needs section model.moe; set it to 1"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.0, model.layers.1]"}},
     "run.yaml:27:model.pipeline_cuts: 2 cuts make 3 stages, but pipeline_model_parallel_size 2 × virtual_pipeline_model_parallel_size 1 "
     "needs 2: write 1 layer names, or remove the list for an even partition"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.90]"}},
     "run.yaml:27:model.pipeline_cuts: `model.layers.90` is no layer that can end a stage: of num_layers 4, model.layers.0 to model.layers.2 "
     "can"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  pipeline_cuts: [model.embed]"}},
     "run.yaml:27:model.pipeline_cuts: `model.embed` names no layer; expected names such as model.layers.0"},
    {{{"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 4"},
      {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.0, model.layers.2, model.layers.1]"}},
     "run.yaml:27:model.pipeline_cuts: `model.layers.1` follows layer 2: the layers must ascend"},
    {{{"  sequence_parallel: true", "  sequence_parallel: true\n  pipeline_model_parallel_split_rank: 1"}},
     "run.yaml:14:distributed_strategy.pipeline_model_parallel_split_rank: not supported (got 1): no model has an encoder and a decoder; "
     "remove it or set it to 0"},
    // Recomputation.
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  activations_checkpoint_recompute: [CoreAtention]"}},
     "run.yaml:28:model.activations_checkpoint_recompute: no module is called `CoreAtention`, did you mean `CoreAttention`?; expected "
     "CoreAttention, LlamaMLP, LlamaRMSNorm, ActivationMultiplyMLP or LlamaDecoderLayer"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  activations_checkpoint_recompute: "
                                        "[CoreAttention, LlamaRotaryEmbedding]"}},
     "run.yaml:28:model.activations_checkpoint_recompute: LlamaRotaryEmbedding: there is nothing to recompute: its tables are made once and a "
     "rotation keeps no activation; remove it from the list"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selectiv"}},
     "run.yaml:27:model.activations_checkpoint_granularity: unknown value `selectiv`, did you mean `selective`?; expected selective or full"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_recompute: [CoreAttention]"}},
     "run.yaml:27:model.activations_checkpoint_recompute: needs activations_checkpoint_granularity: selective; write it or remove the list"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  activations_checkpoint_recompute: []"}},
     "run.yaml:28:model.activations_checkpoint_recompute: activations_checkpoint_granularity selective needs a name, such as CoreAttention"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_method: block"}},
     "run.yaml:27:model.activations_checkpoint_method: not supported (got block): activations_checkpoint_granularity full recomputes every "
     "layer; remove it or set it to uniform"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  activations_checkpoint_num_layers: 2"}},
     "run.yaml:27:model.activations_checkpoint_num_layers: not supported (got 2): each layer is recomputed by itself; remove it or set it to "
     "1"},
    // Models.
    {{{"rmsnorm", "rmsnrom"}},
     "run.yaml:28:model.normalization: unknown value `rmsnrom`, did you mean `rmsnorm`?; expected layernorm, layernorm1p or rmsnorm"},
    {{{"model_source: megatron", "model_source: hf"}, {"normalization: rmsnorm", "normalization: layernorm"}},
     "run.yaml:28:model.normalization: `layernorm` belongs to model_source megatron; an hf model has rmsnorm"},
    {{{"model_source: megatron", "model_source: hf"}, {"has_bias: false", "has_bias: true"}},
     "run.yaml:31:model.has_bias: `true` belongs to model_source megatron; an hf model has no biases"},
    {{{"swiglu", "swish"}},
     "run.yaml:29:model.activation: unknown value `swish`; expected gelu, openai-gelu, geglu, reglu or swiglu"},
    {{{"hidden_dropout: 0", "hidden_dropout: 1.5"}},
     "run.yaml:33:model.hidden_dropout: must be in [0, 1], got 1.5"},
    {{{"hidden_dropout: 0", "hidden_dropout: 1"}},
     "run.yaml:33:model.hidden_dropout: 1 drops everything; it must be smaller than 1"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rotary_percentage: 0"}},
     "run.yaml:27:model.rotary_percentage: must be in (0, 1], got 0"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rotary_percentage: 0.2"}},
     "run.yaml:21:model.hidden_size: the rotated part of a head, 16 × rotary_percentage 0.2 = 3, is odd; rotary embedding turns pairs"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  kv_channels: 15"}},
     "run.yaml:21:model.hidden_size: the rotated part of a head, 15 × rotary_percentage 1 = 15, is odd; rotary embedding turns pairs"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  sliding_window_size: 0"}},
     "run.yaml:27:model.sliding_window_size: must be at least 1, got 0"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rope_scaling: {rope_type: linear}"}},
     "run.yaml:27:model.rope_scaling.factor: the type linear needs it"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rope_scaling: {rope_type: linear, factor: 2}\n  positition_interpolation_factor: 2"}},
     "run.yaml:28:model.positition_interpolation_factor: excludes rope_scaling; remove one of them"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rope_scaling: {rope_type: llama3, factor: 2, low_freq_factor: 4}"}},
     "run.yaml:27:model.rope_scaling: low_freq_factor 4 must be smaller than high_freq_factor 4"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rope_scaling: {rope_type: lama3, factor: 2}"}},
     "run.yaml:27:model.rope_scaling.rope_type: unknown value `lama3`, did you mean `llama3`?; expected default, linear, dynamic, llama3, "
     "yarn or longrope"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fp16_lm_cross_entropy: true"}},
     "run.yaml:27:model.fp16_lm_cross_entropy: not supported (got true): the loss is computed in fp32; remove it or set it to false"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  megatron_amp_O2: true"}},
     "run.yaml:27:model.megatron_amp_O2: not supported (got true): section `precision` replaces it; remove it or set it to false"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  precision: 16"}},
     "run.yaml:27:model.precision: not supported (got 16): section `precision` replaces it; remove it or set it to 32"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  seq_length: 64"}},
     "run.yaml:17:data.seq_length: 64 differs from model.encoder_seq_length 32; write ${model.encoder_seq_length}"},
    {{{"num_layers: 4", "num_layers: 2147483646"}, {"hidden_size: 64", "hidden_size: 65536"}},
     "run.yaml:20:model.num_layers: expected at most 1024, got 2147483646: each layer is planned and run one by one"},
    {{{"model_source: megatron", "model_source: hf"},
      {"  max_position_embeddings: 64", "  model_type: vit\n  image_size: 2147483647\n  patch_size: 1"},
      {"encoder_seq_length: 32", "encoder_seq_length: 2"},
      {"rmsnorm", "layernorm"},
      {"swiglu", "gelu"},
      {"type: rope", "type: learned_absolute"},
      {"has_bias: false", "has_bias: true"},
      {"num_kv_heads: 2", "num_kv_heads: 4"},
      {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 1"},
      {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
      {"sequence_parallel: true", "sequence_parallel: false"}},
     "run.yaml:27:model.image_size: 2147483647 / patch_size 1 makes 2147483647 patches along a side; expected at most 32768"},
    // Mixtures of experts.
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 2147483647, dropless: true}"}, {"hidden_size: 64", "hidden_size: 4096"}},
     "run.yaml:27:model.moe.num_experts: expected at most 65536, got 2147483647: each has its own weights"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {top_k: 2}"}},
     "run.yaml:27:model.moe.num_experts: this key is required and missing"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 2, top_k: 3}"}},
     "run.yaml:27:model.moe.top_k: must not exceed num_experts: 3 > 2"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8, routing_algorithm: sinkhorn}"}},
     "run.yaml:27:model.moe.top_k: routing_algorithm sinkhorn sends each token to 1 expert, got 2; set it to 1 or use top_k"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8, capacity_factor: 0}"}},
     "run.yaml:27:model.moe.capacity_factor: must be greater than 0 unless dropless is true, got 0; null lets every expert see all tokens"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8, dropless: true, glu_mlp: false}"}},
     "run.yaml:27:model.moe.dropless: needs gated experts: set glu_mlp to true"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8, dropout: 0.1}"}},
     "run.yaml:27:model.moe.dropout: not supported (got 0.1): experts have no dropout; remove it or set it to 0"},
    {{{"swiglu", "gelu"}, {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
     "run.yaml:30:model.activation: a mixture of experts needs swiglu"},
    // Precision.
    {{{"model_source: megatron", "model_source: hf"},
      {"  sequence_parallel: true", "  sequence_parallel: true\n  zero1: false"},
      {"  type: mixed_precision", "  type: manual\n  master_weights: true"}},
     "run.yaml:45:precision.master_weights: needs distributed_strategy.zero1: true, whose shards hold it; switch ZeRO-1 on or set this to "
     "false"},
    {{{"  type: mixed_precision", "  type: manual\n  neuron_rt_stochastic_rounding_en: '1'"}},
     "run.yaml:44:precision.neuron_rt_stochastic_rounding_en: rounds fp32 to bf16 weights, but xla_use_bf16 and xla_downcast_bf16 are 0; set "
     "one of them to '1'"},
    {{{"  type: mixed_precision", "  type: manual\n  xla_use_bf16: 2"}},
     "run.yaml:44:precision.xla_use_bf16: expected '0' or '1', got '2'"},
    {{{"type: mixed_precision", "type: mixed_precision_SR"}},
     "run.yaml:43:precision.type: unknown value `mixed_precision_SR`, did you mean `mixed_precisionSR`?; expected mixed_precision, "
     "mixed_precisionSR, bf16SR, autocast, fp32, fp64 or manual"},
    {{{"  type: mixed_precision", "  type: mixed_precision\n  parallel_layers_reduce_dtype: fp16"}},
     "run.yaml:44:precision.parallel_layers_reduce_dtype: unknown value `fp16`, did you mean `bf16`?; expected bf16 or fp32"},
    {{{"  type: mixed_precision", "  type: fp32\n  parallel_layers_reduce_dtype: bf16"}},
     "run.yaml:44:precision.parallel_layers_reduce_dtype: `bf16` contradicts precision.type fp32; remove it or set it to fp32"},
    // Section trainer.
    {{{"  max_steps: 10", "  max_steps: 10\n  accumulate_grad_batches: 4"}},
     "run.yaml:7:trainer.accumulate_grad_batches: not supported (got 4): it is derived: global_batch_size / (micro_batch_size × DP); remove "
     "it or set it to 1"},
    {{{"  max_steps: 10", "  max_steps: 10\n  gradient_clip_algorithm: value"}},
     "run.yaml:7:trainer.gradient_clip_algorithm: not supported (got value): gradients are clipped by their global norm; remove it or set it "
     "to null"},
    {{{"  max_steps: 10", "  max_steps: 10\n  val_check_interval: 0"}},
     "run.yaml:7:trainer.val_check_interval: a number of batches must be at least 1, got 0"},
    {{{"  max_steps: 10", "  max_steps: 10\n  val_check_interval: 1.5"}},
     "run.yaml:7:trainer.val_check_interval: a fraction must be above 0 and at most 1.0, got 1.5; write an integer for a number of batches"},
    {{{"  max_steps: 10", "  max_steps: 10\n  limit_val_batches: 2.5"}},
     "run.yaml:7:trainer.limit_val_batches: a fraction must be at least 0 and at most 1.0, got 2.5; write an integer for a number of batches"},
    {{{"  max_steps: 10", "  max_steps: 10\n  limit_test_batches: -1"}},
     "run.yaml:7:trainer.limit_test_batches: a number of batches must be at least 0, got -1"},
    {{{"  max_steps: 10", "  max_steps: 10\n  max_time: 5h"}},
     "run.yaml:7:trainer.max_time: expected DD:HH:MM:SS such as \"00:04:00:00\" (four hours), got '5h'"},
    {{{"  max_steps: 10", "  max_steps: 10\n  max_epochs: 0"}},
     "run.yaml:7:trainer.max_epochs: must be at least 1, or -1 for as many as max_steps or "
         "max_time needs; got 0"},
    {{{"  max_steps: 10", "  max_steps: 10\n  lnc: 3"}},
     "run.yaml:7:trainer.lnc: logical NeuronCores have 1 or 2 physical cores, got 3"},
    {{{"  max_steps: 10", "  max_steps: 10\n  enable_model_summary: true"}},
     "run.yaml:7:trainer.enable_model_summary: not supported (got true): `trellis validate` prints what will be built; remove it or set it "
     "to false"},
    {{{"  max_steps: 10", "  max_steps: 10\n  track_grad_norm: -2"}},
     "run.yaml:7:trainer.track_grad_norm: must be a power greater than 0 or inf, or -1 for none; "
         "got -2"},
    {{{"  max_steps: 10", "  max_steps: 10\n  sequential_move_factor: 0"}},
     "run.yaml:7:trainer.sequential_move_factor: must be at least 1, got 0"},
    // Section exp_manager.
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  log_local_rank_0_only: true\n  log_global_rank_0_only: true"}},
     "run.yaml:11:exp_manager.log_global_rank_0_only: excludes log_local_rank_0_only: one file per job, or one per node; remove one of them"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  create_wandb_logger: true"}},
     "run.yaml:10:exp_manager.create_wandb_logger: not supported (got true): there is no Weights & Biases logger; metrics go to TensorBoard "
     "and metrics.jsonl; remove it or set it to false"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  create_mlflow_logger: true"}},
     "run.yaml:10:exp_manager.create_mlflow_logger: not supported (got true): metrics go to TensorBoard and metrics.jsonl; remove it or set "
     "it to false"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  early_stopping_callback_params: {mode: down}"}},
     "run.yaml:10:exp_manager.early_stopping_callback_params.mode: unknown value `down`; expected min or max"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  ema: {enable: true, decay: 1.5}"}},
     "run.yaml:10:exp_manager.ema.decay: must be in [0, 1], got 1.5"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  ema: {every_n_steps: 2, apply_ema_every_n_steps: 2}"}},
     "run.yaml:10:exp_manager.ema.apply_ema_every_n_steps: is the older name of every_n_steps; remove one of them"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  max_time_per_run: '00:01:00:00'\n  max_time: '00:02:00:00'"}},
     "run.yaml:11:exp_manager.max_time: 7200 seconds here and 3600 seconds in trainer.max_time or another name of it; write one of them"},
    // Section data.
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10\n  dataloader_type: single"}},
     "run.yaml:18:data.splits_string: expected three numbers (training, validation, test) such as 980,10,10, got 2: '980,10'"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: a,b,c\n  dataloader_type: single"}},
     "run.yaml:18:data.splits_string: expected three numbers such as 980,10,10, got 'a,b,c'"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 0,0,0\n  dataloader_type: single"}},
     "run.yaml:18:data.splits_string: one of the three numbers must be greater than 0"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  dataloader_type: single"}},
     "run.yaml:14:data.splits_string: this key is required and missing; expected three numbers such as 980,10,10"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  splits_string: 980,10,10"}},
     "run.yaml:17:data.splits_string: splits the data of data_prefix, which is missing"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10"}},
     "run.yaml:14:data.dataloader_type: this key is required and missing; expected single or cyclic"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10\n  dataloader_type: random"}},
     "run.yaml:19:data.dataloader_type: unknown value `random`; expected single or cyclic"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a, 2.0]\n  splits_string: 980,10,10\n  dataloader_type: single"}},
     "run.yaml:17:data.data_prefix: expected [path] or [weight, path, weight, path, …], got 3 entries"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [a, 1.0]\n  splits_string: 980,10,10\n  dataloader_type: single"}},
     "run.yaml:17:data.data_prefix: expected a weight greater than 0 in front of 1.0, got 'a'"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: {train: [1.0, a], test: b}\n  dataloader_type: single"}},
     "run.yaml:17:data.data_prefix.validation: a data_prefix by split needs all of train, validation and test"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: {train: a, test: b, validation: c, valid: d}\n  dataloader_type: single"}},
     "run.yaml:17:data.data_prefix.valid: unknown split; expected train, validation and test"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_prefix: [1.0, a]\n  splits_string: 980,10,10\n  dataloader_type: single\n  train_dir: x"}},
     "run.yaml:20:data.train_dir: excludes data_prefix; remove one of them"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  reset_attention_mask: true"}},
     "run.yaml:17:data.reset_attention_mask: not supported (got true): attention is causal over the whole sequence; remove it or set it to "
     "false"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  fine_tuning: true"}},
     "run.yaml:17:data.fine_tuning: not supported (got true): fine-tuning is asked for by section model_alignment_strategy; remove it or set "
     "it to false"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  data_impl: lazy"}},
     "run.yaml:17:data.data_impl: not supported (got lazy): indexed data is mapped into memory; remove it or set it to mmap"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  train_ds: {file_names: [a]}"}},
     "run.yaml:17:data.train_ds: not supported (got a mapping): use train_dir, val_dir and test_dir; remove it or set it to null"},
    {{{"library: byte-level", "library: sentencepice"}},
     "run.yaml:18:data.tokenizer.library: unknown value `sentencepice`, did you mean `sentencepiece`?; expected byte-level, huggingface, "
     "megatron or sentencepiece"},
    {{{"library: byte-level", "library: huggingface"}},
     "run.yaml:17:data.tokenizer.type: the library huggingface needs it, such as a directory with tokenizer.json"},
    {{{"library: byte-level", "library: sentencepiece"}},
     "run.yaml:17:data.tokenizer.model: the library sentencepiece needs it, such as /path/to/tokenizer.model"},
    {{{"library: byte-level", "library: sentencepiece\n    model: x"}},
     "run.yaml:20:model.vocab_size: this key is required and missing: the sentencepiece tokenizer x does not tell the size of its vocabulary; write "
     "it, or correct the tokenizer's path"},
    // Optimizers and schedules.
    {{{"adamw", "adamv"}},
     "run.yaml:35:model.optim.name: unknown value `adamv`, did you mean `adamw`?; expected adamw, adamw_fp32OptState, adam, sgd, adadelta, "
     "adamax, adagrad, rmsprop, rprop, novograd or adafactor"},
    {{{"    betas: [0.9, 0.95]", "    betas: [0.9, 0.95]\n    momentum: 0.9"}},
     "run.yaml:38:model.optim.momentum: is no argument of adamw; its own arguments: amsgrad, capturable"},
    {{{"name: adamw", "name: sgd"}},
     "run.yaml:37:model.optim.betas: is no argument of sgd; its own arguments: momentum, dampening, nesterov"},
    {{{"adamw", "distributed_fused_adam"}},
     "run.yaml:35:model.optim.name: unknown value `distributed_fused_adam`; expected adamw, adamw_fp32OptState, adam, sgd, adadelta, adamax, "
     "adagrad, rmsprop, rprop, novograd or adafactor"},
    {{{"name: adamw", "name: sgd"}, {"    betas: [0.9, 0.95]", "    nesterov: true"}},
     "run.yaml:37:model.optim.nesterov: needs a momentum above 0 and a dampening of 0"},
    {{{"name: adamw", "name: rprop"}, {"    betas: [0.9, 0.95]", "    etas: [0.5]"}},
     "run.yaml:37:model.optim.etas: expected two numbers such as [0.5, 1.2], got 1"},
    {{{"CosineAnnealing", "CosineAnealing"}},
     "run.yaml:39:model.optim.sched.name: unknown value `CosineAnealing`, did you mean `CosineAnnealing`?; expected "
     "LinearAnnealingWithWarmUp, WarmupPolicy, WarmupHoldPolicy, CosineAnnealing, SquareAnnealing, SquareRootAnnealing, NoamAnnealing, "
     "NoamHoldAnnealing, WarmupAnnealing, InverseSquareRootAnnealing, T5InverseSquareRootAnnealing, PolynomialDecayAnnealing, "
     "PolynomialHoldDecayAnnealing, WarmupHoldAnnealLinear, WarmupHoldAnnealOneMinusSquareRoot, StepLR, ExponentialLR, ReduceLROnPlateau or "
     "CyclicLR"},
    {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      warmup_ratio: 0.1"}},
     "run.yaml:42:model.optim.sched.warmup_ratio: excludes warmup_steps; remove one of them"},
    {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      hold_steps: 3"}},
     "run.yaml:42:model.optim.sched.hold_steps: CosineAnnealing has no such phase; remove it or set it to 0"},
    {{{"CosineAnnealing", "WarmupHoldPolicy"},
      {"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      hold_steps: 3\n      hold_ratio: 0.5"}},
     "run.yaml:43:model.optim.sched.hold_ratio: excludes hold_steps; remove one of them"},
    {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      power: 2"}},
     "run.yaml:42:model.optim.sched.power: is no argument of CosineAnnealing; it has none of its own"},
    {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      reduce_on_plateau: true"}},
     "run.yaml:42:model.optim.sched.reduce_on_plateau: not supported (got true): use name: ReduceLROnPlateau; remove it or set it to false"},
    {{{"CosineAnnealing", "NoamAnnealing"}},
     "run.yaml:38:model.optim.sched.d_model: NoamAnnealing needs it: expected a number above 0"},
    // Alignment.
    {{{"model_source: megatron", "model_source: hf"}, {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {}, sft: {}}"}},
     "run.yaml:4:model_alignment_strategy.sft: excludes dpo: expected one strategy of dpo, sft and orpo; remove one of them"},
    {{{"model_source: megatron", "model_source: hf"}, {"seed: 7", "seed: 7\nmodel_alignment_strategy: {peft: {lora_rank: 4}}"}},
     "run.yaml:4:model_alignment_strategy.sft: one of dpo, sft and orpo is required and missing"},
    {{{"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {kl_beta: 0.1}}"}},
     "run.yaml:4:model_alignment_strategy.dpo: Megatron models are fine-tuned with sft only; use model_source hf"},
    {{{"model_source: megatron", "model_source: hf"}, {"seed: 7", "seed: 7\nmodel_alignment_strategy: {orpo: {implementation: trl}}"}},
     "run.yaml:4:model_alignment_strategy.orpo.implementation: `trl` has no pipeline; expected nxdt beside pipeline_model_parallel_size 2, or set "
     "that to 1"},
    {{{"model_source: megatron", "model_source: hf"}, {"seed: 7", "seed: 7\nmodel_alignment_strategy: {orpo: {implementation: liger}}"}},
     "run.yaml:4:model_alignment_strategy.orpo.implementation: unknown value `liger`; expected nxdt or trl"},
    {{{"model_source: megatron", "model_source: hf"}, {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {loss_type: hinge}}"}},
     "run.yaml:4:model_alignment_strategy.dpo.loss_type: unknown value `hinge`; expected sigmoid"},
    {{{"model_source: megatron", "model_source: hf"},
      {"seed: 7", "seed: 7\nmodel_alignment_strategy: {dpo: {precompute_ref_log_probs: false}}"}},
     "run.yaml:4:model_alignment_strategy.dpo.precompute_ref_log_probs: must be true: the reference model is run once, before training"},
    {{{"model_source: megatron", "model_source: hf"},
      {"seed: 7", "seed: 7\nmodel_alignment_strategy: {sft: {packing: true}, peft: {target_modules: [q_proj]}}"}},
     "run.yaml:4:model_alignment_strategy.peft.target_modules: `q_proj` takes no adapter; expected qkv_proj, o_proj, gate_up_proj or "
     "down_proj"},
    {{{"activation: swiglu", "activation: gelu"}, {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fuse_gate_up: false"}},
     "run.yaml:27:model.fuse_gate_up: separates the two halves of a gated activation: expected activation geglu, reglu or swiglu beside false; set it to "
     "true"},
    // Names and places.
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  tensor_model_parallel_size: 2"}},
     "run.yaml:27:model.tensor_model_parallel_size: wrong section: `tensor_model_parallel_size` belongs in section `distributed_strategy`, "
     "not in section `model`"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  global_batch_size: 2"}},
     "run.yaml:27:model.global_batch_size: wrong section: `global_batch_size` belongs in section `data`, not in section `model`"},
    {{{"sequence_parallel: true", "sequence-parallel: true"}},
     "run.yaml:13:distributed_strategy.sequence-parallel: unknown key: keys are written with underscores, `sequence_parallel`"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num-experts: 8}"}},
     "run.yaml:27:model.moe.num_experts: this key is required and missing\nrun.yaml:27:model.moe.num-experts: unknown key: keys are written with "
     "underscores, `num_experts`"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {num_experts: 8, capacity_facto: 1}"}},
     "run.yaml:27:model.moe.capacity_facto: unknown key; did you mean `capacity_factor`?"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  fusions: {flash_atention: true}"}},
     "run.yaml:27:model.fusions.flash_atention: unknown key; did you mean `flash_attention`?"},
    {{{"      min_lr: 1.0e-5", "      min_lr: 1.0e-5\n      warmup_step: 2"}},
     "run.yaml:42:model.optim.sched.warmup_step: unknown key; did you mean `warmup_steps`?"},
    {{{"    betas: [0.9, 0.95]", "    betas: [0.9, 0.95]\n    weight_decy: 2"}},
     "run.yaml:38:model.optim.weight_decy: unknown key; did you mean `weight_decay`?"},
    {{{"model_source: megatron", "model_source: hf"},
      {"seed: 7", "seed: 7\nmodel_alignment_strategy: {sft: {packing: true}, peft: {lora_rnk: 4}}"}},
     "run.yaml:4:model_alignment_strategy.peft.lora_rnk: unknown key; did you mean `lora_rank`?"},
    {{{"exp_manager:\n  name: tiny", "exp_manager:\n  name: tiny\n  checkpoint_callback_params: {save_topk: 1}"}},
     "run.yaml:10:exp_manager.checkpoint_callback_params.save_topk: unknown key; did you mean `save_top_k`?"},
    {{{"  type: mixed_precision", "  type: mixed_precision\n  master_weight: true"}},
     "run.yaml:44:precision.master_weight: unknown key; did you mean `master_weights`?"},
    {{{"  global_batch_size: 16", "  global_batch_size: 16\n  num_worker: 1"}},
     "run.yaml:17:data.num_worker: unknown key; did you mean `num_workers`?"},
    {{{"seed: 7", "seed: 7\nbucket_size_collectives: 0"}},
     "run.yaml:4:bucket_size_collectives: must be at least 1, got 0"},
    {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  kv_channels: ${.num_laiers}"}},
     "run.yaml:27:model.kv_channels: cannot resolve '${.num_laiers}': no key 'model.num_laiers', did you mean 'model.num_layers'?"},
  };
  return files;
}

std::string broken_text(const Broken& broken) {
  std::string text = kBaseConfig;
  for (const auto& [from, to] : broken.changes) {
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << "the base configuration has no: " << from;
    if (place != std::string::npos) text.replace(place, std::string(from).size(), to);
  }
  return text;
}

TEST(BadRules, EachIsNamedWithItsNumbers) {
  for (const Broken& broken : broken_files()) EXPECT_EQ(problems_of(broken_text(broken)), broken.expected);
}

TEST(BadRules, AreMoreThanSixty) { EXPECT_GE(broken_files().size(), 60U); }

}  // namespace
}  // namespace trellis::trainer
