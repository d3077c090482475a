#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/nxd/lora_config.h"
#include "trainer/parallel_layers/rank_mesh.h"
#include "trainer/pipeline/comm.h"

namespace trellis::trainer {

/// `pipeline_config`: how a model is cut into stages and what the engine returns.
struct PipelineConfig {
  int num_microbatches = 1;
  int virtual_pipeline_size = 1;
  std::string transformer_layer_cls =
      {};  ///< class whose instances are counted and cut between; "": every layer counts
  std::vector<std::string> pipeline_cuts =
      {};  ///< names of the last layer of each stage but the final one
  bool auto_partition =
      false;  ///< even stages, the remainder last. Several stages need exactly one of the two.
  std::vector<std::string> input_names =
      {};  ///< what run_train must get: fields of MicroBatch; empty: input_ids
  std::vector<bool> output_loss_value_spec =
      {};  ///< which output of the loss function is the loss; empty: it has one
  bool return_mb_loss = false;  ///< excludes broadcast_and_average_loss
  bool broadcast_and_average_loss = false;
  bool return_loss_on_cpu = true;
  bool deallocate_pipeline_outputs = false;
  std::string trace_file_path = {};  ///< "": none; a Chrome trace of the tasks of each pipeline
                                     ///< rank, data- and tensor-parallel rank 0
  std::optional<BorderTensor> border =
      {};  ///< none: learned in the first step, which shape-only runs cannot
};

/// `optimizer_config`.
struct OptimizerConfig {
  std::optional<bool> zero_one_enabled = {};
  std::optional<bool> grad_clipping = {};
  std::optional<double> max_grad_norm = {};
};

/// `activation_checkpoint_config`: every transformer layer ("full"), or the layers of some classes.
struct ActivationCheckpointConfig {
  bool full = false;
  std::vector<std::string> classes = {};
};

/// `model_init_config`.
struct ModelInitConfig {
  std::optional<int> sequential_move_factor = {};
  std::optional<bool> meta_device_init = {};
  /// Fills one layer's parameters, by their names within the layer; the one source of values with
  /// meta_device_init.
  std::function<void(const std::string& layer, const std::string& parameter, at::Tensor& value)>
      param_init_fn = {};
  /// With meta_device_init: buffers have no values either, and param_init_fn fills them too.
  /// initialize_parallel_model's argument sets it.
  bool include_buffers = false;
};

/// `mixed_precision_config`. Members without a value follow zero_one_enabled.
struct MixedPrecisionConfig {
  std::optional<bool> use_master_weights = {};
  std::optional<bool> use_fp32_grad_acc = {};
  std::optional<bool> use_master_weights_in_ckpt = {};
};

/// The arguments of neuronx_distributed_config, and what it returns: then every optional number is
/// set. NxD's names and defaults.
struct NxDConfig {
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  int expert_parallel_size = 1;   ///< the ranks of data × context parallelism share out the experts
  int context_parallel_size = 1;  ///< each of so many ranks has a part of the sequence
  /// Copies of each key/value head of GQAQKVColumnParallelLinear, one number for all layers; and
  /// how they lie over the TP ranks.
  int kv_size_multiplier = 1;
  ReplicaOrder kv_replica_order = ReplicaOrder::kAdjacent;
  std::optional<PipelineConfig> pipeline_config = {};
  OptimizerConfig optimizer_config = {};
  std::optional<ActivationCheckpointConfig> activation_checkpoint_config = {};
  bool pad_model = false;  ///< heads of GQAQKVColumnParallelLinear that TP does not divide are
                           ///< filled up with heads of zeros
  bool sequence_parallel = false;
  ModelInitConfig model_init_config = {};
  std::optional<LoraConfig> lora_config = {};  ///< none: no adapters
  MixedPrecisionConfig mixed_precision_config = {};
  int sequential_move_factor =
      11;  ///< ranks that build their weights at the same time, when model_init_config does not say
  at::ScalarType dtype = at::kFloat;  ///< of weights and activations
  std::int64_t seed = 1234;
};

/// Fills the defaults, each of which is logged where NxD warns, and checks every rule. Throws one
/// ConfigError with all problems.
[[nodiscard]] NxDConfig neuronx_distributed_config(NxDConfig arguments);

}  // namespace trellis::trainer
