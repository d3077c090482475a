#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/nxd/neuronx_distributed_config.h"
#include "trainer/nxd/sequential_model.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// Which layers of a SequentialModel each stage holds. Only instances of transformer_layer_cls are
/// counted, and stages end after one of them; layers before the first instance belong to the first
/// stage, layers after an instance to its stage.
[[nodiscard]] std::vector<LayerRange> partition_model(const SequentialModel& model,
                                                      const NxDConfig& config);

/// For each layer, true if backward recomputes it, by activation_checkpoint_config. Throws
/// ConfigError when "full" finds no transformer layer or the list of classes is empty; logs classes
/// that no layer has.
[[nodiscard]] std::vector<bool> recomputed_layers(const SequentialModel& model,
                                                  const NxDConfig& config);

/// Sees a layer's first input and its output in a forward pass, on the rank's thread.
using LayerHook = std::function<void(const std::string& layer, const at::Tensor& input,
                                     const at::Tensor& output)>;

/// One pipeline stage of a SequentialModel: its layers in a row, and the loss on the last one.
class SequentialStage final : public PipelineStage {
 public:
  struct Layer {
    std::string name;
    BuiltLayer built;
    LayerScope scope;
    bool recompute = false;
  };
  /// Builds the slot's layers. Values drawn from LibTorch's default generator are a function of
  /// (seed, layer name): the same on every rank. Parameters that no parallel layer made are adopted
  /// into context.parameters, replicated over TP.
  SequentialStage(const SequentialModel& model, const NxDConfig& config,
                  const ModuleContext& context, const StageSlot& slot);

  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const override;
  [[nodiscard]] std::vector<TiedWeight> tied_weights() const override { return tied_; }
  /// The output of the stage's last layer, without the loss.
  [[nodiscard]] at::Tensor output(const at::Tensor& input, const MicroBatch& batch) const;
  [[nodiscard]] const std::vector<Layer>& layers() const { return layers_; }
  void set_layer_hook(LayerHook hook) { hook_ = std::move(hook); }

 private:
  void build(const LayerSpec& spec, const NxDConfig& config, const ModuleContext& context,
             bool recompute);

  std::vector<Layer> layers_;
  LossFunction loss_;            ///< none but on the last stage
  std::size_t loss_output_ = 0;  ///< which of its outputs is the loss
  std::vector<TiedWeight> tied_;
  LayerHook hook_;
  std::shared_ptr<StepPosition> position_;
};

}  // namespace trellis::trainer
