#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/linear_with_async_communication.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

class ColumnParallelLora;
class EmbeddingLora;
class RowParallelLora;

/// Defaults are NxD's.
struct ParallelEmbeddingOptions {
  WeightInit init = {};
  std::optional<std::int64_t> padding_idx = {};  ///< a token whose row gets no gradient
  bool shard_across_embedding =
      false;  ///< shards the embedding dimension instead of the vocabulary
  std::optional<bool> sequence_parallel_enabled = {};  ///< none: the context's
  std::optional<at::ScalarType> reduce_dtype = {};     ///< of the sum over TP; none: the context's
};

/// Rows of the vocabulary, or columns, sharded over TP. Token ids [b, s] → activations [s, b, h],
/// or [s/TP, b, h] with sequence parallelism.
class ParallelEmbedding {
 public:
  /// Throws ConfigError: a size that TP does not divide, a padding_idx that is no token, an adapter
  /// (ModuleContext::lora) with shard_across_embedding.
  ParallelEmbedding(const ModuleContext& context, const std::string& path,
                    std::int64_t num_embeddings, std::int64_t embedding_dim,
                    const ParallelEmbeddingOptions& options = {});
  ParallelEmbedding(const ModuleContext& context, const std::string& path,
                    std::int64_t num_embeddings, std::int64_t embedding_dim, const WeightInit& init)
      : ParallelEmbedding(context, path, num_embeddings, embedding_dim,
                          ParallelEmbeddingOptions{.init = init}) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& input_ids) const;
  /// This rank's rows [num_embeddings/TP, h] (or columns): an output layer may share them.
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }

 private:
  [[nodiscard]] at::Tensor own_output(const at::Tensor& ids) const;
  [[nodiscard]] at::Tensor look_up(const at::Tensor& ids) const;
  [[nodiscard]] at::Tensor look_up_own_rows(const at::Tensor& ids) const;
  [[nodiscard]] at::Tensor look_up_own_columns(const at::Tensor& ids) const;
  at::Tensor weight_;
  ParallelGroup tp_;
  at::ScalarType reduce_dtype_;
  bool sequence_parallel_, shard_across_embedding_;
  std::int64_t padding_row_ = -1;  ///< of this rank's rows; −1: none
  LayerScope scope_;
  std::shared_ptr<const EmbeddingLora> lora_;  ///< null: no adapter
};

/// Defaults are NxD's.
struct ColumnParallelLinearOptions {
  WeightInit init = {};
  bool bias = true;  ///< starts at zero
  bool gather_output =
      true;  ///< every rank gets the whole last dimension; not with sequence parallelism
  bool skip_bias_add = false;  ///< the caller adds bias()
  int stride = 1;              ///< blocks fused into each weight (gate|up: 2)
  std::optional<bool> sequence_parallel_enabled = {};  ///< none: the context's
  std::optional<at::ScalarType> reduce_dtype =
      {};                           ///< of the sum of the input's gradient; none: the context's
  bool keep_master_weight = false;  ///< keeps the un-sharded initial weights on the host
};

/// Y_i = X · A_iᵀ + b_i with the rows of A sharded over TP. Several weights that read the same X
/// may share one layer: the sequence is gathered once and the input's gradient is summed once.
class ColumnParallelLinear {
 public:
  struct Output {
    std::string
        name;  ///< of the weight: "<path of the layer>.<name>.weight"; "" for "<path>.weight"
    std::int64_t size = 0;  ///< un-sharded
  };
  /// Throws ConfigError: gather_output with sequence parallelism, a size that TP · stride does not
  /// divide.
  ColumnParallelLinear(const ModuleContext& context, const std::string& path,
                       std::int64_t input_size, const std::vector<Output>& outputs,
                       const ColumnParallelLinearOptions& options = {});
  /// Input [s, b, h] ([s/TP, b, h] with sequence parallelism) → one [s, b, size/TP] per output, or
  /// [s, b, size] gathered.
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& input) const;
  /// The same with another weight of the first output's shape: a tied embedding.
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& input,
                                                const at::Tensor& weight) const;
  /// The bias that skip_bias_add leaves to the caller to add, in the size of forward()'s output.
  /// Undefined without a bias.
  [[nodiscard]] at::Tensor bias(std::size_t output = 0) const;
  [[nodiscard]] const at::Tensor& weight(std::size_t output = 0) const {
    return shards_.weights[output];
  }
  /// REQUIRES: keep_master_weight.
  [[nodiscard]] const at::Tensor& master_weight(std::size_t output = 0) const {
    return master_weights_.at(output);
  }

 private:
  [[nodiscard]] std::vector<at::Tensor> forward_with(const at::Tensor& input,
                                                     const ColumnShards& shards) const;
  ColumnShards shards_;
  std::vector<at::Tensor> skipped_biases_, master_weights_;
  bool gather_output_;
  std::shared_ptr<const ColumnParallelLora> lora_;  ///< null: no adapters
};

/// Defaults are NxD's.
struct RowParallelLinearOptions {
  WeightInit init = {};
  bool bias = true;                ///< starts at zero; not sharded, added after the sum
  bool input_is_parallel = false;  ///< X arrives as [.., in/TP]; otherwise it is whole and split
                                   ///< here. Sequence parallelism needs it.
  bool skip_bias_add = false;      ///< the caller adds bias()
  bool reduce_output = true;       ///< false: this rank's part of the sum
  int stride = 1;
  std::optional<Partition> partition =
      {};  ///< of dimension 1, instead of the stride: GQAQKVColumnParallelLinear::query_columns()
  std::optional<bool> sequence_parallel_enabled = {};  ///< none: the context's
  std::optional<at::ScalarType> reduce_dtype = {};     ///< of the sum over TP; none: the context's
  bool keep_master_weight = false;  ///< keeps the un-sharded initial weight on the host
};

/// Y = Σ_i X_i · A_iᵀ + b with the columns of A and X sharded over TP. [s, b, in/TP] → [s, b, out]
/// ([s/TP, b, out] with sequence parallelism).
class RowParallelLinear {
 public:
  /// Throws ConfigError: sequence parallelism without input_is_parallel, a bias or an adapter
  /// (ModuleContext::lora) that would be added to each part of a sum, an adapter of fused blocks, a
  /// size that TP · stride does not divide.
  RowParallelLinear(const ModuleContext& context, const std::string& path, std::int64_t input_size,
                    std::int64_t output_size, const RowParallelLinearOptions& options = {});
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;
  /// The bias that skip_bias_add leaves to the caller to add; undefined without a bias.
  [[nodiscard]] const at::Tensor& bias() const { return bias_; }
  [[nodiscard]] const at::Tensor& weight() const { return weight_; }
  /// Undefined without keep_master_weight.
  [[nodiscard]] const at::Tensor& master_weight() const { return master_weight_; }

 private:
  at::Tensor weight_, bias_, master_weight_;
  ParallelGroup tp_;
  at::ScalarType reduce_dtype_;
  bool sequence_parallel_, input_is_parallel_, skip_bias_add_, reduce_output_;
  bool fully_sharded_;  ///< backward reads the weight itself, not a view of what was released
  std::shared_ptr<const RowParallelLora> lora_;  ///< null: no adapter
};

}  // namespace trellis::trainer
