#pragma once

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// What the pipeline engine knows of a model: the part of it that lives on one pipeline stage. A model is made trainable by one class
/// that derives from this and builds only its stage's modules.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// `input`: token ids [b, s] on the first stage, the previous stage's output elsewhere. Returns this stage's output; on the last stage
  /// the micro-batch's mean loss (one number), for which alone `labels` [b, s] is given.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& input, const at::Tensor& labels) const = 0;
};

}  // namespace trellis::trainer
