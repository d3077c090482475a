#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trellis::trainer {

/// `model.optim.sched`.
struct SchedSection {
  std::string name = "CosineAnnealing";
  std::int64_t warmup_steps = 0;
  std::int64_t constant_steps = 0;
  std::int64_t hold_steps = 0;
  std::optional<std::int64_t> max_steps = {};  ///< its length; none: trainer.max_steps
  double min_lr = 0;
  /// Arguments of one schedule only, by their NeMo names: power, cycle, d_model, decay_rate,
  /// step_size, gamma, patience, factor …
  std::map<std::string, double> arguments = {};
  bool operator==(const SchedSection&) const = default;
};

/// `model.optim`.
struct OptimSection {
  std::string name = "adamw";
  double lr = 1e-3;
  double weight_decay = 0;
  std::optional<double> beta1 = {}, beta2 = {}, eps = {};  ///< none: the optimizer's own default
  /// Arguments of one optimizer only, by their NeMo names: momentum, dampening, nesterov, amsgrad,
  /// rho, alpha, centered, etas_0, etas_1, step_sizes_0, step_sizes_1, grad_averaging, luc,
  /// clip_threshold, decay_rate, … (booleans as 0 and 1). Those present were written.
  std::map<std::string, double> arguments = {};
  std::optional<SchedSection> sched = {};
  bool operator==(const OptimSection&) const = default;
};

enum class Normalization { kLayerNorm, kLayerNorm1P, kRmsNorm };
enum class Activation { kGelu, kOpenAiGelu, kGeglu, kReglu, kSwiglu };
enum class TransformerBlock { kPreLn, kPostLn, kNormformer, kGptJ, kReorderedNorm };
enum class PositionEmbedding { kRope, kLearnedAbsolute };
enum class Recompute { kNone, kSelective, kFull };

/// Hugging Face `rope_scaling`, or Megatron's interpolation and base-frequency keys.
struct RopeScaling {
  std::string type = "default";  ///< default, linear, dynamic, llama3
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  int original_max_position_embeddings =
      0;  ///< llama3, dynamic; resolved: max_position_embeddings when not given
  bool operator==(const RopeScaling&) const = default;
};

/// `model.moe`.
struct MoeSection {
  int num_experts = 0;
  int top_k = 2;
  int frequency = 1;  ///< every n-th layer is a mixture of experts …
  int first_layer =
      0;  ///< … from this one on: hf models start with layer 0, Megatron's with layer frequency − 1
  std::optional<double> capacity_factor;  ///< tokens per expert, in units of an even share; none:
                                          ///< every expert sees all tokens
  bool dropless = false;
  std::string routing_algorithm = "top_k";    ///< top_k, sinkhorn, group_limited
  std::string router_activation = "sigmoid";  ///< sigmoid, softmax; sinkhorn only
  int sinkhorn_iterations = 30;
  std::optional<double> sinkhorn_tol;
  bool output_router_logits = false;
  double router_aux_loss_coef = 0.02;
  bool normalize_top_k_affinities = true;
  bool glu_mlp = true;
  // Keys that NxDT does not have.
  int num_groups = 1, top_k_groups = 1;  ///< group_limited: of how many groups tokens choose
  double routed_scaling_factor = 1;      ///< times the weights of the routed experts
  int num_shared_experts = 0;            ///< which see every token, of ffn_hidden_size each
  /// dropless: an expert computes whole blocks of so many rows, as NxD's block-wise kernel does.
  int block_size = 512;
  double jitter_eps = 0;  ///< in training the router reads tokens times 1 − eps … 1 + eps
  /// For a step without data, set by no key: the experts' shares of the picks, by layer of the
  /// whole model; empty: even shares.
  std::map<int, std::vector<double>> simulated_shares = {};
  bool operator==(const MoeSection&) const = default;
};

/// Images that a vision transformer reads: `model.image_size` and its neighbours.
struct ImageSection {
  int size = 224, patch = 16, channels = 3;  ///< square images, cut into square patches
  int labels = 1000;                         ///< classes of the head
  [[nodiscard]] int patches() const { return (size / patch) * (size / patch); }
  [[nodiscard]] std::int64_t values_per_patch() const {
    return std::int64_t{patch} * patch * channels;
  }
  bool operator==(const ImageSection&) const = default;
};

/// NxD's default of lora_save_dir.
inline constexpr const char* kLoraFolder = "lora_adapter";

/// `model_alignment_strategy.peft`: W·x + scale() · B·A·x next to the layers that it names,
/// whose own weights are frozen.
struct LoraSection {
  int rank = 16;
  double alpha = 32;
  double dropout = 0.05;  ///< of what A reads
  /// Modules by their path or its end: "q_proj", "layers.0.self_attn.q_proj". NxDT's names
  /// qkv_proj, o_proj, gate_up_proj and down_proj mean such layers of every model.
  std::vector<std::string> targets = {"qkv_proj"};
  std::string target_regex;  ///< target_modules as one text: whole paths match it; "": targets
  std::vector<std::string> modules_to_save;  ///< are trained as a whole
  std::string bias = "none";  ///< which biases are trained: none, all, lora_only (of the targets)
  bool use_rslora = false;
  bool gaussian = false;    ///< init_lora_weights: A normal with deviation 1/rank, not
                            ///< Kaiming-uniform
  bool load = false;        ///< load_lora_from_ckpt: training starts with the adapters of `folder`
  bool save_base = false;   ///< save_lora_base: `folder` gets the base's weights, too
  bool merge = false;       ///< merge_lora: it gets W + scale · B · A, by rank, and no adapters
  bool one_device = false;  ///< merge_sharded_lora: it gets PEFT's files of the whole adapters
  bool config_in_file = false;  ///< save_lora_config_adapter: files of weights have `lora_config`
  /// lora_save_dir: where adapters are read from with `load`, else where they are saved with each
  /// checkpoint; "": they are not saved alone.
  std::string folder;
  std::string tag;  ///< lora_load_tag, of `folder`; "": the newest complete one
  [[nodiscard]] double scale() const { return alpha / (use_rslora ? std::sqrt(rank) : rank); }
  /// `alias`: NxDT's name of such a layer, or "".
  [[nodiscard]] bool targets_module(const std::string& path, const std::string& alias = "") const;
  [[nodiscard]] bool saves_module(const std::string& path) const;
  /// True if the model without its adapters is the one before training.
  [[nodiscard]] bool keeps_base() const { return bias == "none" && modules_to_save.empty(); }
  bool operator==(const LoraSection&) const = default;
};

/// `model_alignment_strategy.dpo`.
struct DpoSection {
  double beta = 0.01;     ///< YAML: kl_beta
  std::string ref_cache;  ///< file of the reference model's log-probabilities; "": in the run's
                          ///< directory
  /// `reference: start`: with the adapters that training starts from, as TRL; else without any
  bool starts_with_adapters = false;
  bool operator==(const DpoSection&) const = default;
};

/// `model_alignment_strategy.orpo`.
struct OrpoSection {
  double beta = 0.01;
  bool trl = false;  ///< `implementation: trl`: as TRL's ORPOTrainer computes it, else as NxDT does
  bool operator==(const OrpoSection&) const = default;
};

/// NeMo's `model.dist_ckpt_*`: what checkpoints are, and how ranks share the work.
struct DistCkptSection {
  std::string format = "nxd";  ///< torch_dist: a folder of Megatron-core in each of NxD's, too
  bool parallel_save = true;   ///< equal files are shared out among the ranks that could write them
  /// Data that several ranks need are read by one of them; false: each rank reads what it needs.
  bool parallel_load = true;
  bool parallel_dist_opt = true;  ///< false: first data-parallel ranks write ZeRO-1's states
  bool assume_constant_structure = true;  ///< a run plans and validates its saves once
  std::string load_strictness = "assume_ok_unexpected";  ///< Megatron's name
  std::optional<int> files_per_rank;  ///< of torch_dist: dist_ckpt_torch_dist_multiproc
  bool operator==(const DistCkptSection&) const = default;
};

/// Section `model`, for both model sources: Hugging Face sizes come from config.json under the same
/// meanings.
struct ModelSection {
  std::string architecture = "llama";  ///< llama (also mistral), gpt, mixtral, bert, vit
  int num_layers = 0;
  int hidden_size = 0;
  int ffn_hidden_size = 0;
  int num_attention_heads = 0;
  int num_kv_heads = 0;  ///< resolved: equals num_attention_heads when not given
  int head_dim =
      0;  ///< resolved: kv_channels, config.json's head_dim, or hidden_size / num_attention_heads
  int encoder_seq_length = 0;
  int max_position_embeddings = 0;
  int vocab_size = 0;  ///< resolved and padded: a multiple of make_vocab_size_divisible_by · TP
  int make_vocab_size_divisible_by = 128;  ///< hf models, which NxDT does not pad: 1
  double layernorm_epsilon = 1e-5;
  double init_method_std = 0.02;
  bool use_scaled_init_method = true;  ///< output layers scaled by 1/sqrt(2L); hf models: false
  bool do_layer_norm_weight_decay = false;

  // Megatron models; the values here are those of the Llama family, which hf models always have.
  Normalization normalization = Normalization::kRmsNorm;
  Activation activation = Activation::kSwiglu;
  TransformerBlock transformer_block_type = TransformerBlock::kPreLn;
  PositionEmbedding position_embedding = PositionEmbedding::kRope;
  bool has_bias = false;
  /// Queries, keys and values have biases although has_bias is false: Qwen2, and Megatron-LM's
  /// --add-qkv-bias.
  bool qkv_bias = false;
  bool share_embeddings_and_output_weights = false;
  double hidden_dropout = 0, attention_dropout = 0, ffn_dropout = 0;
  bool apply_query_key_layer_scaling = false;
  /// The heads of queries and keys are normalised, each by itself, before RoPE: Qwen3, and
  /// Megatron-LM's --qk-layernorm.
  bool qk_layernorm = false;
  /// The norms of qk_layernorm are over all heads of a token at once, with a weight for each of
  /// their elements: OLMo 2.
  bool qk_layernorm_across_heads = false;
  bool layernorm_bias = true;
  std::optional<double> clip_qkv;  ///< queries, keys and values are held within ± this
  bool fp32_residual_connection = false;
  std::optional<int> sliding_window;  ///< a token attends to itself and the window − 1 before it

  double rope_theta = 10000;  ///< YAML: model.position_freq_base (megatron) or model.rope_theta
                              ///< (hf); times position_abf_factor
  double rotary_percentage = 1;
  RopeScaling rope_scaling;

  bool qkv_linear =
      false;             ///< GQAQKVColumnParallelLinear: needed when TP exceeds the key/value heads
  bool fuse_qkv = true;  ///< one fused weight inside it
  bool fuse_gate_up =
      true;  ///< of a gated activation; false: two layers, each with its own communications
  bool flash_attention = true;
  bool ring_attention = false;
  std::vector<std::string>
      pipeline_cuts;  ///< last layer of each stage but the final one; empty: partition by itself
  Recompute recompute = Recompute::kNone;
  std::vector<std::string>
      recompute_modules;  ///< class names when selective: CoreAttention, LlamaMLP, …
  bool weight_init_only = false;
  DistCkptSection dist_ckpt;
  /// NeMo's: steps whose gradients are not finite change nothing; false: they end the run
  bool skip_nan_grad = false;
  bool save_logits = false;
  std::optional<MoeSection> moe;
  int type_vocab_size = 0;            ///< bert: kinds of token
  std::optional<ImageSection> image;  ///< vit
  std::optional<LoraSection> lora;    ///< model_alignment_strategy.peft
  std::optional<OrpoSection>
      orpo;  ///< model_alignment_strategy.orpo: a sample is a chosen and a rejected sequence
  std::optional<DpoSection> dpo;  ///< model_alignment_strategy.dpo, the same
  OptimSection optim;
  bool operator==(const ModelSection&) const = default;
};

/// True if the activation multiplies a gate with a second part of its input: gate | up along the
/// last dimension.
[[nodiscard]] inline bool is_gated(Activation activation) {
  return activation == Activation::kGeglu || activation == Activation::kReglu ||
         activation == Activation::kSwiglu;
}

[[nodiscard]] inline bool has_qkv_bias(const ModelSection& model) {
  return model.has_bias || model.qkv_bias;
}

/// Every token attends to every other; trained with data parallelism alone.
[[nodiscard]] inline bool is_encoder(const ModelSection& model) {
  return model.architecture == "bert" || model.architecture == "vit";
}
[[nodiscard]] inline int sequences_per_sample(const ModelSection& model) {
  return model.orpo || model.dpo ? 2 : 1;
}

/// True if layer `index` (from 0) is a mixture of experts.
[[nodiscard]] inline bool is_moe_layer(const ModelSection& model, int index) {
  return model.moe && index % model.moe->frequency == model.moe->first_layer;
}

}  // namespace trellis::trainer
