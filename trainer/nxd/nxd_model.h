#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/nxd/local_module.h"
#include "trainer/nxd/neuronx_distributed_config.h"
#include "trainer/nxd/sequential_model.h"
#include "trainer/nxd/sequential_stage.h"
#include "trainer/pipeline/model.h"
#include "trainer/pipeline/tied_weights.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// Describes the model; `context` is what parallel layers that are built right away would need.
using ModelFunction = std::function<SequentialModel(const ModuleContext& context)>;

/// This rank's part of a parallel model, trained like a plain one. Its layers, parameters and state
/// are those that live here, under names that are the same in every layout.
class NxDModel {
 public:
  NxDModel(const NxDConfig& config, runtime::RankContext& rank, const ModelFunction& model_fn);
  NxDModel(const NxDModel&) = delete;
  NxDModel& operator=(const NxDModel&) = delete;

  /// Forward and backward of one batch of this data-parallel rank, on the CPU: it is cut along
  /// dimension 0 into num_microbatches, which move to the device one by one; with context
  /// parallelism each rank takes its part of the sequence. Gradients are averaged
  /// over data-parallel ranks, by the NxDOptimizer when there is one, else here. Returns the loss:
  /// of one stage, or as pipeline_config says. Undefined where there is none.
  at::Tensor run_train(const MicroBatch& batch);
  /// The loss without gradients. Throws ConfigError unless the model has several pipeline ranks
  /// (forward() serves one), or with virtual stages.
  at::Tensor run_eval(const MicroBatch& batch);
  /// The last layer's output for a whole batch, of this rank's part of the sequence. Throws
  /// ConfigError with several pipeline ranks.
  at::Tensor forward(const MicroBatch& batch);

  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
  named_modules() const;

  /// Parameters and buffers, detached; they share memory with the model.
  using StateDict = std::map<std::string, at::Tensor>;
  struct LoadResult {
    std::vector<std::string> missing_keys, unexpected_keys;
  };
  [[nodiscard]] StateDict state_dict() const;
  /// Copies values in. Throws ConfigError for other sizes and, when `strict`, for missing or
  /// unexpected keys.
  LoadResult load_state_dict(const StateDict& state, bool strict = true);

  /// The layers of each virtual stage of this rank, in order.
  [[nodiscard]] std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> local_modules() const;
  /// The same layers of one virtual stage as one module, whose parameters are all that live here,
  /// under their names: what is wrapped. The same object in each call.
  [[nodiscard]] std::shared_ptr<LocalModule> local_module(std::size_t chunk = 0);
  /// Every layer of the model. Throws ConfigError with several pipeline ranks: the others' layers
  /// are not built here.
  [[nodiscard]] std::vector<std::shared_ptr<torch::nn::Module>> original_module() const;
  void train(
      bool on = true);  ///< sets the mode of every module; run_train and run_eval do so themselves
  void eval() { train(false); }

  /// Names of all layers of the model, also of those that live on other ranks.
  [[nodiscard]] const std::vector<std::string>& layer_names() const { return layer_names_; }
  /// True if a parameter's name begins with that of any layer (knows_layer_of), or of a layer that
  /// lives on this rank (has_layer_of).
  [[nodiscard]] bool knows_layer_of(const std::string& parameter) const;
  [[nodiscard]] bool has_layer_of(const std::string& parameter) const;
  /// Sees each layer of this rank in every forward pass: see LayerHook.
  void set_layer_hook(const LayerHook& hook);
  /// The copies of each tied weight that has one here, by name.
  [[nodiscard]] std::vector<std::vector<std::string>> tied_names() const;

  [[nodiscard]] const NxDConfig& config() const { return config_; }
  /// Null: the model has no adapters. With load_lora_from_ckpt the numbers are those that were
  /// saved.
  [[nodiscard]] const LoraSection* lora() const { return lora_ ? &*lora_ : nullptr; }
  [[nodiscard]] at::ScalarType dtype() const { return config_.dtype; }
  [[nodiscard]] const ParallelState& parallel() const { return parallel_; }
  [[nodiscard]] ParameterList& parameter_list() { return parameters_; }
  [[nodiscard]] const ParameterList& parameter_list() const { return parameters_; }
  [[nodiscard]] const TiedWeights& tied_weights() const { return *tied_; }
  [[nodiscard]] const std::shared_ptr<StepPosition>& position() const { return context_.position; }
  /// From now on an optimizer reduces the gradients.
  void leave_gradients_to_optimizer() { optimizer_reduces_ = true; }

 private:
  [[nodiscard]] ModuleContext make_context(const runtime::RankContext& rank);
  void build_in_waves(runtime::RankContext& rank, const ModelFunction& model_fn);
  void take_adapters(const SequentialModel& model);
  void check_adapters() const;
  [[nodiscard]] std::vector<std::unique_ptr<PipelineStage>> build_stages(
      const SequentialModel& model);
  [[nodiscard]] PipelineOptions engine_options(
      const std::vector<std::unique_ptr<PipelineStage>>& stages) const;
  [[nodiscard]] const SequentialStage& stage(std::size_t chunk) const;
  [[nodiscard]] std::vector<MicroBatch> split(const MicroBatch& batch) const;
  at::Tensor returned(const at::Tensor& loss) const;
  void reduce_gradients();

  NxDConfig config_;
  PipelineConfig pipeline_;
  ParallelState parallel_;
  ParameterList parameters_;
  std::optional<LoraSection> lora_;  ///< context_ has its address
  std::vector<std::string> layer_names_;
  ModuleContext context_;
  std::optional<NxDPPModel> engine_;
  std::optional<TiedWeights> tied_;
  std::map<std::size_t, std::shared_ptr<LocalModule>> local_modules_;  ///< by virtual stage
  bool optimizer_reduces_ = false;
};

}  // namespace trellis::trainer
