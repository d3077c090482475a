#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Rows of the vocabulary sharded over TP. Token ids [b, s] → activations [s, b, h], or [s/TP, b, h] with sequence parallelism.
class ParallelEmbedding {
 public:
  ParallelEmbedding(const ModuleContext& context, const std::string& path, std::int64_t num_embeddings, std::int64_t embedding_dim,
                    double init_std);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_ids) const;

 private:
  [[nodiscard]] at::Tensor look_up_own_rows(const at::Tensor& ids) const;
  at::Tensor weight_;
  ParallelGroup tp_;
  at::ScalarType reduce_dtype_;
  bool sequence_parallel_;
  LayerScope scope_;
};

/// Y_i = X · A_iᵀ with the rows of A sharded over TP. Several weights that read the same X may share one layer: the sequence is gathered
/// once and the input's gradient is summed once. No bias.
class ColumnParallelLinear {
 public:
  struct Output {
    std::string name;          ///< of the weight: "<path of the layer>.<name>.weight"; "" for "<path>.weight"
    std::int64_t size = 0;     ///< un-sharded
  };
  /// `stride`: blocks fused into each weight.
  ColumnParallelLinear(const ModuleContext& context, const std::string& path, std::int64_t input_size, const std::vector<Output>& outputs,
                       double init_std, int stride = 1);
  /// Input [s, b, h] ([s/TP, b, h] with sequence parallelism) → one [s, b, size/TP] per output.
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& input) const;

 private:
  std::vector<at::Tensor> weights_;
  ParallelGroup tp_;
  at::ScalarType reduce_dtype_;
  bool sequence_parallel_;
};

/// Y = Σ_i X_i · A_iᵀ with the columns of A and X sharded over TP. [s, b, in/TP] → [s, b, out] ([s/TP, b, out] with sequence parallelism).
class RowParallelLinear {
 public:
  RowParallelLinear(const ModuleContext& context, const std::string& path, std::int64_t input_size, std::int64_t output_size, double init_std);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  at::Tensor weight_;
  ParallelGroup tp_;
  at::ScalarType reduce_dtype_;
  bool sequence_parallel_;
};

}  // namespace trellis::trainer
