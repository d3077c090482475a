// Broken layouts and models, one rule each: what is where, the rule with its numbers, what to do.
#include "tests/trainer/config/broken_files.h"

namespace trellis::trainer {
namespace {

const std::vector<Broken>& broken_rules() {
  static const std::vector<Broken> files = {
      // Layouts.
      {{{"num_layers: 4", "num_layers: 80"},
        {"devices: 8", "devices: 64"},
        {"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 16\n  virtual_pipeline_model_parallel_size: 2"},
        {"global_batch_size: 16", "global_batch_size: 64"}},
       "run.yaml:21:model.num_layers: 80 is not divisible by pipeline_model_parallel_size 16 × "
       "virtual_pipeline_model_parallel_size 2 = 32 (5 "
       "layers per rank do not make 2 equal virtual stages); nearest legal values: 64 or 96"},
      {{{"num_layers: 4", "num_layers: 30"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 4"}},
       "run.yaml:20:model.num_layers: 30 is not divisible by pipeline_model_parallel_size 4; "
       "nearest legal values: 28 or 32"},
      {{{"model_source: megatron", "model_source: hf"},
        {"num_layers: 4", "num_layers: 3"},
        {"  sequence_parallel: true",
         "  sequence_parallel: true\n  virtual_pipeline_model_parallel_size: 2"}},
       "run.yaml:21:model.num_layers: 3 layers are too few for pipeline_model_parallel_size 2 × "
       "virtual_pipeline_model_parallel_size 2 = 4 "
       "stages: each needs at least one"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 1\n  virtual_pipeline_model_parallel_size: 2"}},
       "run.yaml:13:distributed_strategy.virtual_pipeline_model_parallel_size: 2 needs "
       "pipeline_model_parallel_size > 1, whose bubble virtual "
       "stages make smaller, got 1; set it to 1 or raise pipeline_model_parallel_size"},
      {{{"global_batch_size: 16", "global_batch_size: 4"}},
       "run.yaml:16:data.global_batch_size: 1 micro-batches = global_batch_size 4 / "
       "(micro_batch_size 2 × DP 2) do not fill "
       "pipeline_model_parallel_size 2; raise it to at least 8, or lower the number of stages"},
      {{{"global_batch_size: 16", "global_batch_size: 12"},
        {"  sequence_parallel: true",
         "  sequence_parallel: true\n  virtual_pipeline_model_parallel_size: 2"}},
       "run.yaml:17:data.global_batch_size: 12 is not divisible by micro_batch_size 2 × DP 2 × "
       "pipeline_model_parallel_size 2 = 8, as virtual "
       "stages need (3 micro-batches in rounds of 2); nearest legal values: 8 or 16"},
      {{{"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 8"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"}},
       "run.yaml:23:model.num_attention_heads: 4 is not divisible by tensor_model_parallel_size 8; "
       "nearest legal values: 8"},
      {{{"model_source: megatron", "model_source: hf"},
        {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 4"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"}},
       "run.yaml:24:model.num_kv_heads: 2 is not divisible by tensor_model_parallel_size 4; hold "
       "each 2 times: qkv_linear: true and "
       "distributed_strategy.kv_replicator: 2"},
      {{{"model_source: megatron", "model_source: hf"},
        {"  sequence_parallel: true", "  sequence_parallel: true\n  kv_replicator: 2"}},
       "run.yaml:14:distributed_strategy.kv_replicator: 2 needs model.qkv_linear: true, whose "
       "layer replicates; write it, or set this to 1"},
      {{{"model_source: megatron", "model_source: hf"},
        {"  sequence_parallel: true", "  sequence_parallel: true\n  kv_replicator: 3"},
        {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
       "run.yaml:14:distributed_strategy.kv_replicator: 3 must divide tensor_model_parallel_size "
       "2; nearest legal values: 2"},
      {{{"model_source: megatron", "model_source: hf"},
        {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 8"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
        {"num_attention_heads: 4", "num_attention_heads: 8"},
        {"num_kv_heads: 2", "num_kv_heads: 1"},
        {"hidden_size: 64", "hidden_size: 64"},
        {"sequence_parallel: true", "sequence_parallel: true\n  kv_replicator: 2"},
        {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
       "run.yaml:14:distributed_strategy.kv_replicator: num_kv_heads 1 × kv_replicator 2 = 2 is "
       "not divisible by tensor_model_parallel_size 8; "
       "legal values: 8"},
      {{{"model_source: megatron", "model_source: hf"},
        {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 4"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
        {"sequence_parallel: true", "sequence_parallel: true\n  kv_replicator: 4"},
        {"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
       "run.yaml:14:distributed_strategy.kv_replicator: num_attention_heads 4 is not divisible by "
       "num_kv_heads 2 × kv_replicator 4 = 8, so that copies would "
       "serve unequal numbers of query heads; legal values: 2"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  qkv_linear: true"}},
       "run.yaml:27:model.qkv_linear: belongs to model_source hf: Megatron models have their own "
       "query-key-value projection"},
      {{{"model_source: megatron", "model_source: hf"},
        {"  make_vocab_size_divisible_by: 8", "  vocab_size: 1001"}},
       "run.yaml:27:model.vocab_size: 1001 is not divisible by tensor_model_parallel_size 2, and "
       "hf models are not padded; nearest legal "
       "values: 1000 or 1002, or write make_vocab_size_divisible_by: 1 to pad it"},
      {{{"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 16"},
        {"num_attention_heads: 4", "num_attention_heads: 16"},
        {"num_kv_heads: 2", "num_kv_heads: 16"},
        {"hidden_size: 64", "hidden_size: 512"}},
       "run.yaml:11:distributed_strategy.tensor_model_parallel_size: 16 exceeds the world size 8 = "
       "devices 8 × num_nodes 1; lower it or add "
       "ranks"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2"}},
       "run.yaml:13:distributed_strategy.context_parallel_size: 2 needs "
       "model.fusions.ring_attention: true (and flash_attention: false)"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2"},
        {"encoder_seq_length: 32", "encoder_seq_length: 34"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {ring_attention: true}"}},
       "run.yaml:26:model.encoder_seq_length: 34 is not divisible by tensor_model_parallel_size 2 "
       "× context_parallel_size 2 = 4, as "
       "sequence_parallel needs; nearest legal values: 32 or 36"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2147483647"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {ring_attention: true}"}},
       "run.yaml:26:model.encoder_seq_length: 32 is not divisible by tensor_model_parallel_size 2 "
       "× context_parallel_size 2147483647 = 4294967294, as sequence_parallel needs; nearest legal "
       "values: 4294967294\nrun.yaml:13:distributed_strategy.context_parallel_size: 2147483647 "
       "exceeds the world size 8 = devices 8 × num_nodes 1; lower it or add ranks"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2"},
        {"  sequence_parallel: true", "  sequence_parallel: false"},
        {"encoder_seq_length: 32", "encoder_seq_length: 33"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {ring_attention: true}"}},
       "run.yaml:26:model.encoder_seq_length: 33 is not divisible by context_parallel_size 2; "
       "nearest legal values: 32 or 34"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2\n  context_parallel_order: "
         "balanced"},
        {"  sequence_parallel: true", "  sequence_parallel: false"},
        {"encoder_seq_length: 32", "encoder_seq_length: 30"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {ring_attention: true}"}},
       "run.yaml:27:model.encoder_seq_length: 30 is not divisible by 2 × context_parallel_size 2 "
       "= 4, as context_parallel_order balanced needs; nearest legal values: 28 or 32"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_size: 2\n  context_parallel_order: "
         "balanced"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  sliding_window_size: 8\n  fusions: {ring_attention: "
         "true}"}},
       "run.yaml:14:distributed_strategy.context_parallel_order: balanced has no blocks to skip in "
       "a sliding window of 8 tokens: ranks in contiguous order are balanced by the window; write "
       "contiguous"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 2\n  context_parallel_order: zigzag"}},
       "run.yaml:13:distributed_strategy.context_parallel_order: unknown value `zigzag`; expected "
       "contiguous or balanced"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 1\n  fsdp: true\n  zero1: false"}},
       "run.yaml:14:distributed_strategy.zero1: false, and fsdp is true: it shards the optimizer's "
       "states too; expected zero1 true, or fsdp false"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 1\n  data_parallel_replicate_size: 2"}},
       "run.yaml:13:distributed_strategy.data_parallel_replicate_size: 2 copies of fully sharded "
       "weights: expected fsdp true, got false; set it, or set this to 1"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 1\n  fsdp: true\n  data_parallel_replicate_size: 3"}},
       "run.yaml:14:distributed_strategy.data_parallel_replicate_size: 3 must divide DP 4; nearest "
       "legal values: 2 or 4"},
      {{{"pipeline_model_parallel_size: 2",
         "pipeline_model_parallel_size: 1\n  fsdp: true\n  data_parallel_replicate_size: 2\n  "
         "expert_model_parallel_size: 4"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
       "run.yaml:15:distributed_strategy.expert_model_parallel_size: 4 must divide DP 4 × CP 1 / "
       "data_parallel_replicate_size 2 = 2; nearest legal values: 2"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fusions: {ring_attention: true, flash_attention: "
         "true}"}},
       "run.yaml:27:model.fusions.ring_attention: excludes flash_attention; set one of them to "
       "false"},
      {{{"  sequence_parallel: true",
         "  sequence_parallel: true\n  expert_model_parallel_size: 2"}},
       "run.yaml:14:distributed_strategy.expert_model_parallel_size: 2 needs section model.moe; "
       "set it to 1"},
      {{{"  sequence_parallel: true", "  sequence_parallel: true\n  expert_model_parallel_size: 4"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
       "run.yaml:14:distributed_strategy.expert_model_parallel_size: 4 must divide DP 2 × CP 1 = "
       "2; nearest legal values: 2"},
      {{{"  sequence_parallel: true", "  sequence_parallel: true\n  expert_model_parallel_size: 2"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 3}"}},
       "run.yaml:14:distributed_strategy.expert_model_parallel_size: 2 must divide "
       "model.moe.num_experts 3; nearest legal values: 1 or 3"},
      {{{"  sequence_parallel: true", "  sequence_parallel: true\n  token_shuffle_group_size: 3"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
       "run.yaml:14:distributed_strategy.token_shuffle_group_size: 3 must divide DP 2; nearest "
       "legal values: 2"},
      {{{"  sequence_parallel: true", "  sequence_parallel: true\n  token_shuffle_group_size: 2"}},
       "run.yaml:14:distributed_strategy.token_shuffle_group_size: 2 needs section model.moe; set "
       "it to 1"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.0, model.layers.1]"}},
       "run.yaml:27:model.pipeline_cuts: 2 cuts make 3 stages, but pipeline_model_parallel_size 2 "
       "× virtual_pipeline_model_parallel_size 1 "
       "needs 2: write 1 layer names, or remove the list for an even partition"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.90]"}},
       "run.yaml:27:model.pipeline_cuts: `model.layers.90` is no layer that can end a stage: of "
       "num_layers 4, model.layers.0 to model.layers.2 "
       "can"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  pipeline_cuts: [model.embed]"}},
       "run.yaml:27:model.pipeline_cuts: `model.embed` names no layer; expected names such as "
       "model.layers.0"},
      {{{"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 4"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  pipeline_cuts: [model.layers.0, model.layers.2, "
         "model.layers.1]"}},
       "run.yaml:27:model.pipeline_cuts: `model.layers.1` follows layer 2: the layers must ascend"},
      {{{"  sequence_parallel: true",
         "  sequence_parallel: true\n  pipeline_model_parallel_split_rank: 1"}},
       "run.yaml:14:distributed_strategy.pipeline_model_parallel_split_rank: not supported (got "
       "1): no model has an encoder and a decoder; "
       "remove it or set it to 0"},
      // Recomputation.
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  "
         "activations_checkpoint_recompute: [CoreAtention]"}},
       "run.yaml:28:model.activations_checkpoint_recompute: no module is called `CoreAtention`, "
       "did you mean `CoreAttention`?; expected "
       "CoreAttention, LlamaMLP, LlamaRMSNorm, ActivationMultiplyMLP or LlamaDecoderLayer"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  "
         "activations_checkpoint_recompute: "
         "[CoreAttention, LlamaRotaryEmbedding]"}},
       "run.yaml:28:model.activations_checkpoint_recompute: LlamaRotaryEmbedding: there is nothing "
       "to recompute: its tables are made once and a "
       "rotation keeps no activation; remove it from the list"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selectiv"}},
       "run.yaml:27:model.activations_checkpoint_granularity: unknown value `selectiv`, did you "
       "mean `selective`?; expected selective or full"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_recompute: [CoreAttention]"}},
       "run.yaml:27:model.activations_checkpoint_recompute: needs "
       "activations_checkpoint_granularity: selective; write it or remove the list"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_granularity: selective\n  "
         "activations_checkpoint_recompute: []"}},
       "run.yaml:28:model.activations_checkpoint_recompute: activations_checkpoint_granularity "
       "selective needs a name, such as CoreAttention"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_method: block"}},
       "run.yaml:27:model.activations_checkpoint_method: not supported (got block): "
       "activations_checkpoint_granularity full recomputes every "
       "layer; remove it or set it to uniform"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  activations_checkpoint_num_layers: 2"}},
       "run.yaml:27:model.activations_checkpoint_num_layers: not supported (got 2): each layer is "
       "recomputed by itself; remove it or set it to "
       "1"},
      // Models.
      {{{"rmsnorm", "rmsnrom"}},
       "run.yaml:28:model.normalization: unknown value `rmsnrom`, did you mean `rmsnorm`?; "
       "expected layernorm, layernorm1p or rmsnorm"},
      {{{"model_source: megatron", "model_source: hf"},
        {"normalization: rmsnorm", "normalization: layernorm"}},
       "run.yaml:28:model.normalization: `layernorm` belongs to model_source megatron; an hf model "
       "has rmsnorm"},
      {{{"model_source: megatron", "model_source: hf"}, {"has_bias: false", "has_bias: true"}},
       "run.yaml:31:model.has_bias: `true` belongs to model_source megatron; an hf model has no "
       "biases"},
      {{{"swiglu", "swish"}},
       "run.yaml:29:model.activation: unknown value `swish`; expected gelu, openai-gelu, geglu, "
       "reglu or swiglu"},
      {{{"hidden_dropout: 0", "hidden_dropout: 1.5"}},
       "run.yaml:33:model.hidden_dropout: must be in [0, 1], got 1.5"},
      {{{"hidden_dropout: 0", "hidden_dropout: 1"}},
       "run.yaml:33:model.hidden_dropout: 1 drops everything; it must be smaller than 1"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  rotary_percentage: 0"}},
       "run.yaml:27:model.rotary_percentage: must be in (0, 1], got 0"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  rotary_percentage: 0.2"}},
       "run.yaml:21:model.hidden_size: the rotated part of a head, 16 × rotary_percentage 0.2 = 3, "
       "is odd; rotary embedding rotates pairs"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  kv_channels: 15"}},
       "run.yaml:21:model.hidden_size: the rotated part of a head, 15 × rotary_percentage 1 = 15, "
       "is odd; rotary embedding rotates pairs"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  sliding_window_size: 0"}},
       "run.yaml:27:model.sliding_window_size: must be at least 1, got 0"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  rope_scaling: {rope_type: linear}"}},
       "run.yaml:27:model.rope_scaling.factor: the type linear needs it"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  rope_scaling: {rope_type: linear, factor: 2}\n  "
         "positition_interpolation_factor: 2"}},
       "run.yaml:28:model.positition_interpolation_factor: excludes rope_scaling; remove one of "
       "them"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  rope_scaling: {rope_type: llama3, factor: 2, "
         "low_freq_factor: 4}"}},
       "run.yaml:27:model.rope_scaling: low_freq_factor 4 must be smaller than high_freq_factor 4"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  rope_scaling: {rope_type: lama3, factor: 2}"}},
       "run.yaml:27:model.rope_scaling.rope_type: unknown value `lama3`, did you mean `llama3`?; "
       "expected default, linear, dynamic, llama3, "
       "yarn or longrope"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  fp16_lm_cross_entropy: true"}},
       "run.yaml:27:model.fp16_lm_cross_entropy: not supported (got true): the loss is computed in "
       "fp32; remove it or set it to false"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  megatron_amp_O2: true"}},
       "run.yaml:27:model.megatron_amp_O2: not supported (got true): section `precision` replaces "
       "it; remove it or set it to false"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  precision: 16"}},
       "run.yaml:27:model.precision: not supported (got 16): section `precision` replaces it; "
       "remove it or set it to 32"},
      {{{"  global_batch_size: 16", "  global_batch_size: 16\n  seq_length: 64"}},
       "run.yaml:17:data.seq_length: 64 differs from model.encoder_seq_length 32; write "
       "${model.encoder_seq_length}"},
      {{{"num_layers: 4", "num_layers: 2147483646"}, {"hidden_size: 64", "hidden_size: 65536"}},
       "run.yaml:20:model.num_layers: expected at most 1024, got 2147483646: each layer is planned "
       "and run one by one"},
      {{{"model_source: megatron", "model_source: hf"},
        {"  max_position_embeddings: 64",
         "  model_type: vit\n  image_size: 2147483647\n  patch_size: 1"},
        {"encoder_seq_length: 32", "encoder_seq_length: 2"},
        {"rmsnorm", "layernorm"},
        {"swiglu", "gelu"},
        {"type: rope", "type: learned_absolute"},
        {"has_bias: false", "has_bias: true"},
        {"num_kv_heads: 2", "num_kv_heads: 4"},
        {"tensor_model_parallel_size: 2", "tensor_model_parallel_size: 1"},
        {"pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1"},
        {"sequence_parallel: true", "sequence_parallel: false"}},
       "run.yaml:27:model.image_size: 2147483647 / patch_size 1 makes 2147483647 patches along a "
       "side; expected at most 32768"},
      // Mixtures of experts.
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 2147483647, dropless: true}"},
        {"hidden_size: 64", "hidden_size: 4096"}},
       "run.yaml:27:model.moe.num_experts: expected at most 65536, got 2147483647: each has its "
       "own weights"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  moe: {top_k: 2}"}},
       "run.yaml:27:model.moe.num_experts: this key is required and missing"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 2, top_k: 3}"}},
       "run.yaml:27:model.moe.top_k: must not exceed num_experts: 3 > 2"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, routing_algorithm: sinkhorn}"}},
       "run.yaml:27:model.moe.top_k: routing_algorithm sinkhorn sends each token to 1 expert, got "
       "2; set it to 1 or use top_k"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, capacity_factor: 0}"}},
       "run.yaml:27:model.moe.capacity_factor: must be greater than 0 unless dropless is true, got "
       "0; null lets every expert see all tokens"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, dropless: true, glu_mlp: false}"}},
       "run.yaml:27:model.moe.dropless: needs gated experts: set glu_mlp to true"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, block_size: 128}"}},
       "run.yaml:27:model.moe.block_size: 128 is of experts that drop no token: expected dropless "
       "true, got false; set it, or remove this"},
      {{{"  max_position_embeddings: 64", "  max_position_embeddings: 64\n  clip_qkv: 0"}},
       "run.yaml:27:model.clip_qkv: must be greater than 0, got 0"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  layernorm_bias: false"}},
       "run.yaml:27:model.layernorm_bias: false is of layer norms: expected normalization "
       "layernorm "
       "or layernorm1p, got rmsnorm, which has none; remove it"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, dropout: 0.1}"}},
       "run.yaml:27:model.moe.dropout: not supported (got 0.1): experts have no dropout; remove it "
       "or set it to 0"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, dropless: true, capacity_factor: "
         "2}"}},
       "run.yaml:27:model.moe.capacity_factor: 2 contradicts dropless: true, which drops no token; "
       "set it to 0.0, or dropless to false"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, top_k: 1, "
         "normalize_top_k_affinities: true}"}},
       "run.yaml:27:model.moe.normalize_top_k_affinities: true makes the one affinity of a token "
       "1, without a gradient for the router: expected false with top_k 1"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, routing_algorithm: group_limited, "
         "num_groups: 3}"}},
       "run.yaml:27:model.moe.num_groups: 3 must divide num_experts 8"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, routing_algorithm: group_limited, "
         "num_groups: 2, top_k_groups: 3}"}},
       "run.yaml:27:model.moe.top_k_groups: must not exceed num_groups: 3 > 2"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, top_k: 3, routing_algorithm: "
         "group_limited, num_groups: 4, top_k_groups: 1}"}},
       "run.yaml:27:model.moe.top_k: 3 exceeds the 2 experts of top_k_groups 1 groups of 2"},
      {{{"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8, num_groups: 2}"}},
       "run.yaml:27:model.moe.num_groups: 2 needs routing_algorithm group_limited, got top_k"},
      {{{"swiglu", "gelu"},
        {"  max_position_embeddings: 64",
         "  max_position_embeddings: 64\n  moe: {num_experts: 8}"}},
       "run.yaml:30:model.activation: a mixture of experts needs swiglu"},
      // Precision.
      {{{"model_source: megatron", "model_source: hf"},
        {"  sequence_parallel: true", "  sequence_parallel: true\n  zero1: false"},
        {"  type: mixed_precision", "  type: manual\n  master_weights: true"}},
       "run.yaml:45:precision.master_weights: needs distributed_strategy.zero1: true, whose shards "
       "hold it; switch ZeRO-1 on or set this to "
       "false"},
      {{{"  type: mixed_precision", "  type: manual\n  neuron_rt_stochastic_rounding_en: '1'"}},
       "run.yaml:44:precision.neuron_rt_stochastic_rounding_en: rounds fp32 to bf16 weights, but "
       "xla_use_bf16 and xla_downcast_bf16 are 0; set "
       "one of them to '1'"},
      {{{"  type: mixed_precision", "  type: manual\n  xla_use_bf16: 2"}},
       "run.yaml:44:precision.xla_use_bf16: expected '0' or '1', got '2'"},
      {{{"type: mixed_precision", "type: mixed_precision_SR"}},
       "run.yaml:43:precision.type: unknown value `mixed_precision_SR`, did you mean "
       "`mixed_precisionSR`?; expected mixed_precision, "
       "mixed_precisionSR, bf16SR, autocast, fp32, fp64 or manual"},
      {{{"  type: mixed_precision",
         "  type: mixed_precision\n  parallel_layers_reduce_dtype: fp16"}},
       "run.yaml:44:precision.parallel_layers_reduce_dtype: unknown value `fp16`, did you mean "
       "`bf16`?; expected bf16 or fp32"},
      {{{"  type: mixed_precision", "  type: fp32\n  parallel_layers_reduce_dtype: bf16"}},
       "run.yaml:44:precision.parallel_layers_reduce_dtype: `bf16` contradicts precision.type "
       "fp32; remove it or set it to fp32"},
  };
  return files;
}

TEST(BadRules, EachIsNamedWithItsNumbers) {
  for (const Broken& broken : broken_rules())
    EXPECT_EQ(problems_of(broken_text(broken)), broken.expected);
}

TEST(BadRules, AreMoreThanSixty) { EXPECT_GE(broken_rules().size(), 60U); }

}  // namespace
}  // namespace trellis::trainer
