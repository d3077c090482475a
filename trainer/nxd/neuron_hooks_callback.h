#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

class NeuronLTModule;
class NeuronTensorBoardLogger;

/// NeuronHooksCallback's configuration, with NxD's names.
struct NeuronHooksConfig {
  bool hooks = true;  ///< false: the callback does nothing
  std::vector<std::string> target_layers =
      {};                  ///< names of layers, as SequentialModel::add gives them
  int hooks_interval = 1;  ///< in steps, which count from 0
  bool enable_activation_dumps = true;
  bool enable_grad_dumps = true;
  bool dump_only_norms = true;  ///< L2 norms over the step; false: the tensors, [micro-batches, …]
  bool dump_only_master_rank = false;  ///< global rank 0
  /// TensorBoard scalars activation_input_norm/<layer>, activation_output_norm/<layer>; they need
  /// dump_only_master_rank and dump_only_norms.
  bool enable_tb_logging_master_rank_activation_norms = false;
  bool enable_tb_logging_master_rank_grad_norms =
      false;  ///< grad_input_norm/<layer>, grad_output_norm/<layer>; the same
  bool master_print_model_layers = false;  ///< rank 0 lists the model's layers on the log
  /// "": ./hooks_outputs/<SLURM_JOB_ID, or "local">/hooks_dumps
  std::filesystem::path directory = {};
};

/// Dumps what goes into and comes out of layers, and the gradients of both:
///
///   <directory>/<layer>/global_step_N/dp_rank_DD_tp_rank_TT_pp_rank_PP_<what>_{norm,raw}.pt
///
/// with <what> one of layer_input, layer_output, grad_input and grad_output, in a form that
/// torch.load reads. A layer that reads token ids has no grad_input. Ranks share one callback.
class NeuronHooksCallback {
 public:
  /// Throws ConfigError: an interval below 1, TensorBoard norms without what they need.
  explicit NeuronHooksCallback(NeuronHooksConfig config);
  /// Norms go there too. REQUIRES: it outlives the training.
  NeuronHooksCallback& logger(NeuronTensorBoardLogger& logger);
  [[nodiscard]] const NeuronHooksConfig& config() const { return config_; }

 private:
  friend class NeuronHooks;
  NeuronHooksConfig config_;
  NeuronTensorBoardLogger* logger_ = nullptr;
};

/// The callback at work on one rank.
class NeuronHooks {
 public:
  /// Throws ConfigError for a target that is no layer of the model.
  NeuronHooks(const NeuronHooksCallback& callback, NeuronLTModule& module);
  NeuronHooks(const NeuronHooks&) = delete;
  NeuronHooks& operator=(const NeuronHooks&) = delete;
  ~NeuronHooks();
  /// Writes what the step's passes brought. `step` from 0.
  void end_step(std::int64_t step);

 private:
  [[nodiscard]] bool is_due() const;
  void record(const std::string& layer, const std::string& kind, const at::Tensor& tensor);
  void watch(const std::string& layer, const at::Tensor& input, const at::Tensor& output);
  void write(const std::string& layer, const std::string& kind,
             const std::vector<at::Tensor>& tensors, std::int64_t step) const;

  const NeuronHooksCallback& callback_;
  NeuronLTModule& module_;
  std::int64_t step_ = 0;
  std::map<std::pair<std::string, std::string>, std::vector<at::Tensor>>
      recorded_;  ///< by layer and kind, one per micro-batch
};

}  // namespace trellis::trainer
