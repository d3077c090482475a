#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/modules/recompute.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// The experts of a rank: MLPs without bias whose weights are stacked along dimension 0, expert
/// after expert, each sharded over TP as a column- and a row-parallel layer.
///
///   gate_up_proj  [experts/EP · 2f/TP, h]   of each expert gate | up (f rows without a gate)
///   down_proj     [experts/EP · h, f/TP]
///
/// An expert is drawn from its own stream: the same weights for every EP and TP.
class ExpertMlps {
 public:
  ExpertMlps(const ModuleContext& context, const std::string& path, const ModelSection& config);
  /// [experts/EP, rows, h]: equally many rows of each expert; returns this TP rank's part of a sum.
  [[nodiscard]] at::Tensor forward(const at::Tensor& rows) const;
  /// [Σ counts, h]: `counts[i]` rows of the i-th expert of the rank; the same.
  [[nodiscard]] at::Tensor forward(const at::Tensor& rows,
                                   const std::vector<std::int64_t>& counts) const;
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  [[nodiscard]] at::Tensor activated(const at::Tensor& hidden) const;

  Activation activation_;
  bool recomputes_activation_;
  std::shared_ptr<StepPosition> position_;
  std::int64_t count_, hidden_size_;
  at::Tensor input_, output_;
};

}  // namespace trellis::trainer
