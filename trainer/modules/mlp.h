#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/modules/module_names.h"
#include "trainer/modules/norm.h"
#include "trainer/modules/recompute.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {

/// Linear, activation, dropout, linear; normformer normalises the activations first. A gated
/// activation's gate and up are fused in the first weight, or two layers on one input
/// (model.fuse_gate_up).
class ParallelMLP {
 public:
  ParallelMLP(const ModuleContext& context, const std::string& path, const ModelSection& config,
              const ModuleNames& names);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  [[nodiscard]] at::Tensor run(const at::Tensor& input) const;
  [[nodiscard]] at::Tensor between(const std::vector<at::Tensor>& inputs) const;

  Activation activation_;
  RecomputePlan recompute_;
  std::shared_ptr<StepPosition> position_;
  std::vector<ColumnParallelLinear> inputs_;  ///< one, or gate and up
  std::optional<ShardedNorm> norm_;
  Dropout dropout_;
  ParallelGroup tp_;
  RowParallelLinear output_;
  std::optional<ColumnParallelLora> input_lora_;
  std::optional<RowParallelLora> output_lora_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
