#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trellis::trainer {

/// Section `trainer`.
struct TrainerSection {
  int devices = 8;               ///< ranks per node
  int num_nodes = 1;
  std::int64_t max_steps = 100;
  int log_every_n_steps = 1;
  std::optional<double> gradient_clip_val;  ///< max gradient norm; none: no clipping
  bool operator==(const TrainerSection&) const = default;
};

/// Section `exp_manager`.
struct ExpManagerSection {
  std::string explicit_log_dir;  ///< "" = exp_dir/name/version
  std::string exp_dir = "nemo_experiments";
  std::string name = "default";
  std::string version;           ///< "" = next free version_N, or a date-time
  bool use_datetime_version = true;
  bool create_tensorboard_logger = true;
  bool operator==(const ExpManagerSection&) const = default;
};

/// Section `distributed_strategy`.
struct DistributedStrategySection {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  bool zero1 = true;
  bool sequence_parallel = false;
  bool operator==(const DistributedStrategySection&) const = default;
};

/// Section `data`.
struct DataSection {
  int micro_batch_size = 1;
  int global_batch_size = 1;
  std::string train_dir;          ///< file or directory of text; "" = the Python standard library's sources
  std::string tokenizer_library = "byte-level";
  bool operator==(const DataSection&) const = default;
};

struct SchedSection {
  std::string name = "CosineAnnealing";
  std::int64_t warmup_steps = 0;
  std::int64_t constant_steps = 0;
  double min_lr = 0;
  bool operator==(const SchedSection&) const = default;
};

struct OptimSection {
  std::string name = "adamw";
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  std::optional<SchedSection> sched;
  bool operator==(const OptimSection&) const = default;
};

/// Section `model`.
struct ModelSection {
  int num_layers = 0;
  int hidden_size = 0;
  int ffn_hidden_size = 0;
  int num_attention_heads = 0;
  int num_kv_heads = 0;          ///< resolved: equals num_attention_heads when not given
  int encoder_seq_length = 0;
  int max_position_embeddings = 0;
  int vocab_size = 0;            ///< resolved and padded: a multiple of make_vocab_size_divisible_by · TP
  int make_vocab_size_divisible_by = 128;  ///< hf models, which NxDT does not pad: 1
  double layernorm_epsilon = 1e-5;
  double rope_theta = 10000;     ///< YAML: model.position_freq_base (megatron) or model.rope_theta (hf)
  double init_method_std = 0.02;
  bool do_layer_norm_weight_decay = false;
  OptimSection optim;
  bool operator==(const ModelSection&) const = default;
};

/// Section `precision`, resolved to what it means.
struct PrecisionSection {
  std::string type = "mixed_precision";  ///< mixed_precision, fp32; fp64 is an extension of ours for parity runs
  bool master_weights = true;            ///< fp32 masters in the ZeRO-1 shards
  bool fp32_grad_acc = true;
  bool operator==(const PrecisionSection&) const = default;
};

/// A validated run: every default applied, every derived number computed. Immutable after load.
struct RunConfig {
  std::string name;
  std::string model_source = "megatron";
  std::int64_t seed = 1234;
  TrainerSection trainer;
  ExpManagerSection exp_manager;
  DistributedStrategySection distributed_strategy;
  DataSection data;
  ModelSection model;
  PrecisionSection precision;
  std::string resolved_yaml;     ///< the file after overrides and interpolation, with the resolved values

  [[nodiscard]] int world_size() const { return trainer.devices * trainer.num_nodes; }
  [[nodiscard]] int tp() const { return distributed_strategy.tensor_model_parallel_size; }
  [[nodiscard]] int pp() const { return distributed_strategy.pipeline_model_parallel_size; }
  [[nodiscard]] int dp() const { return world_size() / (tp() * pp()); }
  [[nodiscard]] int num_microbatches() const { return data.global_batch_size / (data.micro_batch_size * dp()); }
  /// Parameters of the whole model.
  [[nodiscard]] std::int64_t num_parameters() const;
  /// Model FLOPs of one training step (forward + backward): 6·parameters(without embedding lookup)·tokens + 12·L·h·s·tokens·½ causal attention.
  [[nodiscard]] double model_flops_per_step() const;
  bool operator==(const RunConfig&) const = default;
};

/// Reads and validates an NxDT YAML. `overrides`: "key.path=value". Throws one ConfigError with every problem (file:line:key).
[[nodiscard]] RunConfig load_run_config(const std::string& file, const std::vector<std::string>& overrides);
/// Ranks of the run against the machine; throws ConfigError (needs N ranks, instance has M cores × nodes).
void check_fits_machine(const RunConfig& config, const std::string& instance, int nodes, int logical_cores);

}  // namespace trellis::trainer
