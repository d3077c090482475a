#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::sim {
struct SystemConfig;
}

namespace trellis::trainer {

/// A number of batches or a part of them: `limit_val_batches: 4` or `0.5`; `val_check_interval`
/// the same.
struct BatchCount {
  std::optional<std::int64_t> count;  ///< exactly one of the two is set
  std::optional<double> fraction;     ///< of one epoch, 0 … 1
  [[nodiscard]] bool is_zero() const { return count.value_or(0) == 0 && fraction.value_or(0) == 0; }
  bool operator==(const BatchCount&) const = default;
};

/// Section `trainer`.
struct TrainerSection {
  int devices = 8;  ///< ranks per node
  int num_nodes = 1;
  std::int64_t max_steps = 100;  ///< −1: max_epochs or max_time decides
  int max_epochs = -1;           ///< −1: max_steps or max_time decides
  /// early stopping and max_time end no run before these
  std::optional<std::int64_t> min_steps;
  std::optional<std::int64_t> min_epochs;
  std::optional<double> max_time_s;  ///< YAML: max_time DD:HH:MM:SS
  int log_every_n_steps = 1;
  std::optional<BatchCount> val_check_interval;  ///< none: once per epoch
  std::optional<int> check_val_every_n_epoch =
      1;  ///< none (null): val_check_interval counts steps across epochs
  int num_sanity_val_steps = 0;
  std::optional<BatchCount> limit_train_batches, limit_val_batches,
      limit_test_batches;                   ///< none: all
  std::optional<double> gradient_clip_val;  ///< max gradient norm; none: no clipping
  /// another norm of the gradients that is logged: a power above 0, or infinity
  std::optional<double> track_grad_norm;
  bool enable_progress_bar = true;
  std::optional<int> lnc;           ///< logical NeuronCore size; none: the instance decides
  int sequential_move_factor = 11;  ///< ranks of a host that build their weights at the same time
  bool operator==(const TrainerSection&) const = default;
};

/// `exp_manager.early_stopping_callback_params`.
struct EarlyStoppingSection {
  std::string monitor = "val_loss";
  std::string mode = "min";
  double min_delta = 0.001;
  int patience = 10;
  bool check_finite = true;
  std::optional<double> stopping_threshold, divergence_threshold;
  bool operator==(const EarlyStoppingSection&) const = default;
};

/// `exp_manager.ema`, when enabled.
struct EmaSection {
  double decay = 0.999;
  int apply_ema_every_n_steps = 1;
  std::int64_t start_step = 0;
  bool evaluate_ema_weights_instead = false;
  bool operator==(const EmaSection&) const = default;
};

/// `exp_manager.checkpoint_callback_params` and the keys of exp_manager that belong to checkpoints.
struct CheckpointSection {
  bool create = false;   ///< create_checkpoint_callback
  std::string dirpath;   ///< "": <log_dir>/checkpoints
  std::string filename;  ///< "": <name>--{monitor:.4f}-{epoch}
  std::string monitor = "val_loss";
  std::string mode = "min";
  int save_top_k = 3;  ///< −1: all; 0: none but the last
  bool save_last = true;
  int save_last_n_optim_states = -1;  ///< older ones keep their weights alone; −1: all have states
  bool save_weights_only = false;
  bool enable_version_counter = false;  ///< one of the same name stays
  bool verbose = true;                  ///< each saved one is in the log
  bool auto_insert_metric_name = true;
  std::int64_t every_n_epochs = 1;  ///< 0 where steps or time decide
  std::optional<std::int64_t> every_n_train_steps;
  std::optional<double> train_time_interval_s;
  bool save_xser = false;
  bool save_bf16 = false;
  /// avoid_saving_lower_precision_weights: those with masters in the optimizer's files
  bool masters_replace_weights = false;
  bool zero1_dcp = false;                  ///< use_zero1_dcp: states of ZeRO-1 in a folder of DCP
  bool async = false;                      ///< async_checkpointing, or async_save of newer NeMo
  std::optional<double> async_buffer_gib;  ///< host memory for copies; none: no limit
  bool resume_if_exists = false;
  bool resume_ignore_no_checkpoint = false;
  std::string resume_from_checkpoint;  ///< "": none
  /// Properties in which the model may differ from what a checkpoint says; see model_properties.h
  std::vector<std::string> accept_differences = {};
  bool recovery_times = false;  ///< enable_recovery_time_instrumentation
  bool operator==(const CheckpointSection&) const = default;
};

/// Section `exp_manager`.
struct ExpManagerSection {
  std::string explicit_log_dir;  ///< "" = exp_dir/name/version
  std::string exp_dir = "nemo_experiments";
  std::string name = "default";
  std::string version;  ///< "" = next free version_N, or a date-time
  bool use_datetime_version = true;
  bool create_tensorboard_logger = true;
  bool log_step_timing = true;
  bool log_parameter_norm = false;
  bool log_gradient_norm = false;
  bool log_local_rank_0_only = false;
  bool log_global_rank_0_only = false;
  std::vector<std::string> files_to_copy;
  std::optional<EarlyStoppingSection> early_stopping;  ///< create_early_stopping_callback
  std::optional<EmaSection> ema;
  CheckpointSection checkpoints;
  bool operator==(const ExpManagerSection&) const = default;
};

/// Section `distributed_strategy`.
struct DistributedStrategySection {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  int virtual_pipeline_model_parallel_size = 1;
  int context_parallel_size = 1;
  std::string context_parallel_order = "contiguous";  ///< of the sequence over the ranks; balanced
  int expert_model_parallel_size = 1;
  int token_shuffle_group_size = 1;
  bool zero1 = true;
  bool fsdp = false;  ///< weights and gradients are sharded over data-parallel ranks too
  int data_parallel_replicate_size = 1;  ///< of fsdp: copies of the whole, each on its part of DP
  bool sequence_parallel = false;
  int kv_replicator =
      1;  ///< copies of each key/value head: kv_size_multiplier of GQAQKVColumnParallelLinear
  bool operator==(const DistributedStrategySection&) const = default;
};

/// `data.tokenizer`.
struct TokenizerSection {
  std::string library = "byte-level";  ///< byte-level, huggingface, megatron, sentencepiece
  std::string type;   ///< huggingface: directory or tokenizer.json; megatron: GPT2BPETokenizer, …
  std::string model;  ///< sentencepiece: the .model file
  std::string vocab_file, merge_file;  ///< GPT-2 BPE
  /// Around records that no chat template writes. nxdt: the beginning-of-sequence token where the
  /// tokenizer names one; post_processor: what the tokenizer's own adds
  std::string special_tokens = "nxdt";
  bool operator==(const TokenizerSection&) const = default;
};

/// One weighted source of Megatron data.
struct DataPrefix {
  double weight = 1;
  std::string path;  ///< without .bin / .idx
  bool operator==(const DataPrefix&) const = default;
};

/// The kind of data that a run reads; decided from model_source, model_alignment_strategy and the
/// keys present.
enum class DataKind { kText, kHfDataset, kMegatron, kAlignment };

/// How records of fine-tuning become samples: keys of `model_alignment_strategy` and of `data`.
struct RecordSection {
  bool packing = false;                        ///< sft: several records in a sequence
  std::string truncation_mode = "keep_start";  ///< of longer records: keep_start, keep_end
  /// dpo, orpo: tokens of a prompt, where the pair is too long; none: the pair is cut as one.
  std::optional<int> max_prompt_length;
  int dev_choose_samples = 0;  ///< only the first records; 0: all
  bool shuffle = true;         ///< training samples, in each epoch
  bool operator==(const RecordSection&) const = default;
};

/// Section `data`.
struct DataSection {
  int micro_batch_size = 1;
  int global_batch_size = 1;
  DataKind kind = DataKind::kText;
  // kText, kHfDataset and kAlignment. kText: file or directory of text or JSONL; "" = the Python
  // standard library's sources. kAlignment: file or directory of records.
  std::string train_dir, val_dir, test_dir;
  // kMegatron. One list split by `splits_string`, or one list for each of train, validation and
  // test.
  std::vector<DataPrefix> data_prefix;
  std::map<std::string, std::vector<DataPrefix>> data_prefix_by_split;
  std::vector<double> splits;     ///< three numbers, as written; normalise before use
  std::string index_mapping_dir;  ///< "" = next to the data
  bool cyclic = false;            ///< dataloader_type
  bool drop_last = true, validation_drop_last = true;
  bool reset_position_ids = false;
  bool eod_mask_loss = false;
  bool no_seqlen_plus_one_input_tokens = false;
  int num_workers = 0;
  RecordSection records;
  TokenizerSection tokenizer;
  bool operator==(const DataSection&) const = default;
};

/// Modes of §precision: what is bf16, what is fp32.
struct PrecisionSection {
  std::string type = "mixed_precision";  ///< bf16SR, fp32, autocast, mixed_precision,
                                         ///< mixed_precisionSR, manual; fp64: ours, for parity
  bool weights_bf16 = true;              ///< of weights and activations on the device
  bool floats_bf16 = false;  ///< XLA_USE_BF16: float32 is bf16 on the device, so that softmax and
                             ///< cross entropy are too
  bool autocast = false;     ///< torch.autocast(bf16) around forward and backward
  bool stochastic_rounding = false;  ///< of fp32 → bf16 when weights are updated
  bool master_weights = true;        ///< fp32 masters in the ZeRO-1 shards
  bool fp32_grad_acc = true;         ///< gradients accumulate and are reduced in fp32
  std::string parallel_layers_reduce_dtype = "bf16";  ///< bf16, fp32; of sums over TP
  bool operator==(const PrecisionSection&) const = default;
};

/// A feature that a configuration asks for, and that this version validates but does not support.
struct UnsupportedFeature {
  std::string key;           ///< "distributed_strategy.context_parallel_size"
  std::string text;          ///< "context parallelism (context_parallel_size 2)"
  bool changes_step = true;  ///< false: concerns files only, such as checkpoints; one simulated
                             ///< step is the same without it
  std::string where = {};    ///< "file:line:key"; no part of what the configuration says
  bool operator==(const UnsupportedFeature& other) const {
    return key == other.key && text == other.text && changes_step == other.changes_step;
  }
};

/// Where keys are in the file, for rules that are checked later; no part of what the
/// configuration says.
struct KeyPlaces {
  std::map<std::string, std::string> where;
  /// "file:line:key", or the key itself.
  [[nodiscard]] std::string of(const std::string& key) const {
    const auto found = where.find(key);
    return found == where.end() ? key : found->second;
  }
  bool operator==(const KeyPlaces&) const { return true; }
};

/// The machine that a file asks for: a key of this project, which NxDT does not have.
struct MachineKey {
  std::string instance;    ///< "": the file names none
  std::string where = {};  ///< "file:line:key"; no part of what the configuration says
  bool operator==(const MachineKey& other) const { return instance == other.instance; }
};

/// A validated run: every default applied, every derived number computed. Immutable after load.
struct RunConfig {
  std::string name;
  std::string model_source = "megatron";
  std::string software = "none";  ///< whose cost in addition to the device's work a simulated step
                                  ///< has: none, STACK or STACK@RELEASE
  MachineKey machine;
  std::int64_t seed = 1234;
  TrainerSection trainer;
  ExpManagerSection exp_manager;
  DistributedStrategySection distributed_strategy;
  DataSection data;
  ModelSection model;
  PrecisionSection precision;
  std::string alignment;          ///< model_alignment_strategy: "", dpo, sft or orpo
  std::string hardware = "trn2";  ///< generation of the run's machine, which is no key of the file:
                                  ///< it orders the copies of key/value heads
  int bucket_size_collectives_mb = 0;  ///< 0: the defaults of each collective
  /// Legal, but not supported by this version: `trellis validate` lists them, `train` and
  /// `simulate` refuse the run by these names.
  std::vector<UnsupportedFeature> unsupported;
  KeyPlaces places;  ///< of the keys that the machine is compared with
  std::string
      resolved_yaml;  ///< the file after overrides and interpolation, with the resolved values

  [[nodiscard]] int world_size() const { return trainer.devices * trainer.num_nodes; }
  [[nodiscard]] int tp() const { return distributed_strategy.tensor_model_parallel_size; }
  [[nodiscard]] int pp() const { return distributed_strategy.pipeline_model_parallel_size; }
  [[nodiscard]] int vpp() const {
    return distributed_strategy.virtual_pipeline_model_parallel_size;
  }
  [[nodiscard]] int cp() const { return distributed_strategy.context_parallel_size; }
  /// expert parallelism lies within data × context parallelism: it takes no further ranks
  [[nodiscard]] int ep() const { return distributed_strategy.expert_model_parallel_size; }
  [[nodiscard]] int dp() const { return world_size() / (tp() * pp() * cp()); }
  [[nodiscard]] std::int64_t tokens_per_step() const {
    return std::int64_t{data.global_batch_size} * sequences_per_sample(model) *
           model.encoder_seq_length;
  }
  [[nodiscard]] int num_microbatches() const {
    return data.global_batch_size / (data.micro_batch_size * dp());
  }
  /// Parameters of the whole model.
  [[nodiscard]] std::int64_t num_parameters() const;
  /// Model FLOPs of one training step (forward + backward): 6·parameters(without embedding
  /// lookup)·tokens + 12·L·h·s·tokens·½ causal attention; with LoRA 4 in place of 6.
  [[nodiscard]] double model_flops_per_step() const;
  bool operator==(const RunConfig&) const = default;
};

/// A key of the file that changes nothing here, and why.
struct KeyWithoutEffect {
  std::string key;  ///< "exp_manager.save_xser"
  std::string why;
  std::string where = {};  ///< "file:line:key"
  bool operator==(const KeyWithoutEffect&) const = default;
};

}  // namespace trellis::trainer
