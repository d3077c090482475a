#pragma once

#include <string>

#include <torch/nn/module.h>

#include "trainer/nxd/sequential_stage.h"

namespace trellis::trainer {

/// The layers of a stage as one module of LibTorch: "block.0" is the child "0" of the child
/// "block". Weights of parallel layers, which belong to no module, are registered where their names
/// say; they share memory with training. REQUIRES: the stage outlives forward().
class LocalModule : public torch::nn::Module {
 public:
  LocalModule(const SequentialStage& stage, const ParameterList& parameters);
  /// The output of the stage's last layer, without the loss. `input`: of the stage before; the
  /// first one reads batch.input_ids. Both on the rank's device.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const {
    return stage_.output(input, batch);
  }
  [[nodiscard]] at::Tensor forward(const MicroBatch& batch) const { return forward({}, batch); }

 private:
  const SequentialStage& stage_;
};

}  // namespace trellis::trainer
