#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {

/// silu(gate) · up of an input whose last dimension is gate | up.
at::Tensor swiglu(const at::Tensor& gate_up);

/// SwiGLU block: gate and up fused in gate_up_proj, then down_proj.
class LlamaMLP {
 public:
  LlamaMLP(const ModuleContext& context, const std::string& path, std::int64_t hidden_size, std::int64_t ffn_hidden_size, double init_std,
           double output_init_std);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  ColumnParallelLinear gate_up_proj_;
  RowParallelLinear down_proj_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
