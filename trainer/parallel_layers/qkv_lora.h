#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trainer/parallel_layers/lora.h"
#include "trainer/parallel_layers/qkv_linear.h"

namespace trellis::trainer {

/// Low-rank adapters as in lora.h, next to a GQAQKVColumnParallelLinear: one A for all three, B is
/// such a layer, whose key/value rows have the copies of the weight's. Names:
/// "<path>.lora_A.weight",
/// "<path>.lora_B.weight_qkv", or "….weight_q", "….weight_k", "….weight_v".
class GqaQkvLora {
 public:
  /// `path`, `shape`, `options`: the layer's.
  GqaQkvLora(const ModuleContext& context, const LoraSection& lora, const std::string& path,
             const AttentionShape& shape, const QkvLinearOptions& options);
  /// `input`: the layer's.
  void add_to(GQAQKVColumnParallelLinear::Output& output, const at::Tensor& input) const;

 private:
  double scale_;
  std::shared_ptr<StepPosition> position_;
  Dropout dropout_;
  at::Tensor a_;
  std::optional<GQAQKVColumnParallelLinear> b_;
  bool sequence_parallel_;
  ParallelGroup tp_;
};

}  // namespace trellis::trainer
