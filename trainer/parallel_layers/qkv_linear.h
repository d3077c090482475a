#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/linear_with_async_communication.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

class GqaQkvLora;

struct AttentionShape {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_size = 0;  ///< 0: hidden_size / num_heads
  [[nodiscard]] std::int64_t head_dim() const {
    return head_size != 0 ? head_size : hidden_size / num_heads;
  }
};

/// Which heads a rank holds when each key/value head has `kv_size_multiplier` copies; S = TP /
/// multiplier different sets of heads. Query heads follow their key/value head. Eight query heads,
/// K0–K3, TP 8, multiplier 2:
///
///   rank           0      1      2      3      4      5      6      7
///   kAdjacent     Q0 K0  Q1 K0  Q2 K1  Q3 K1  Q4 K2  Q5 K2  Q6 K3  Q7 K3
///   kInterleaved  Q0 K0  Q2 K1  Q4 K2  Q6 K3  Q1 K0  Q3 K1  Q5 K2  Q7 K3
///
/// Trn2 uses kAdjacent (query heads in their natural order), Trn1 kInterleaved.
struct QkvPartition {
  Partition query, key_value;  ///< rows of one projection's weight; `key_value` serves both
  Partition query_columns;     ///< the same for the columns of the output projection that follows
};
/// With `pad_heads` (NxD's pad_model) heads that TP or the multiplier does not divide are filled up
/// with heads of zeros: query heads within the group of their key/value head, so that every copy
/// serves as many; then key/value heads with their groups at the end. The padding exists on the
/// ranks only: un-sharded weights, names and checkpoints are those of the unpadded model. Throws
/// ConfigError, with `path` in its text, when the sizes do not allow it.
[[nodiscard]] QkvPartition partition_qkv(const AttentionShape& shape, int tp,
                                         int kv_size_multiplier, ReplicaOrder order,
                                         const std::string& path, bool pad_heads = false);
/// For each query head that `rank` holds: true if it is one of the model's, false for padding.
[[nodiscard]] std::vector<bool> real_query_heads(const QkvPartition& partition,
                                                 std::int64_t head_dim, int rank, int tp);

/// Defaults are NxD's.
struct QkvLinearOptions {
  WeightInit init = {};
  bool bias = true;  ///< starts at zero
  bool gather_output =
      true;  ///< every rank gets all heads, each key/value head once; not with sequence parallelism
  std::optional<int> kv_size_multiplier = {};  ///< copies of each key/value head, so that TP may
                                               ///< exceed their number; none: as the parallel
                                               ///< state has groups for
  bool fuse_qkv = true;                        ///< one weight with rows q | k | v
  std::optional<bool> pad_heads = {};  ///< as partition_qkv()'s; the attention's output must go
                                       ///< through mask_padded_heads(). None: the context's
  std::optional<bool> sequence_parallel_enabled = {};  ///< none: the context's
  std::optional<at::ScalarType> reduce_dtype =
      {};  ///< of sums over TP and over replicas; none: the context's
};

/// Queries, keys and values from one input, sharded by heads. Equal to the layer without replicas.
/// Parameters: "<path>.weight_qkv" (and
/// "<path>.bias_qkv"), or "<path>.weight_q", "….weight_k", "….weight_v" (and biases): the same
/// values, fused or not.
class GQAQKVColumnParallelLinear {
 public:
  /// Throws ConfigError: sizes that TP or the multiplier does not divide, a multiplier that the
  /// parallel state has no groups for, gather_output with sequence parallelism.
  GQAQKVColumnParallelLinear(const ModuleContext& context, const std::string& path,
                             const AttentionShape& shape, const QkvLinearOptions& options = {});
  struct Output {
    at::Tensor query;       ///< [s, b, num_heads/TP, d]; with the padding's heads
    at::Tensor key, value;  ///< [s, b, num_kv_heads·multiplier/TP, d]
  };
  /// Input [s, b, h] ([s/TP, b, h] with sequence parallelism).
  [[nodiscard]] Output forward(const at::Tensor& input) const;
  /// Sets the attention output of padded heads, [s, b, heads, d], to zero: none of it reaches the
  /// output projection, and no gradient reaches a padded row. The identity without padding.
  [[nodiscard]] at::Tensor mask_padded_heads(const at::Tensor& attended) const;
  /// For the output projection, whose columns follow the query heads:
  /// RowParallelLinearOptions::partition.
  [[nodiscard]] const Partition& query_columns() const { return partition_.query_columns; }

 private:
  void make_fused(const ModuleContext& context, const std::string& path,
                  const QkvLinearOptions& options);
  void make_separate(const ModuleContext& context, const std::string& path,
                     const QkvLinearOptions& options);
  void make_one(const ModuleContext& context, WeightSpec spec, bool replicated,
                std::vector<at::Tensor>& list);
  [[nodiscard]] at::Tensor gathered(const at::Tensor& own, const Partition& partition) const;

  AttentionShape shape_;
  QkvPartition partition_;
  ColumnShards shards_;
  at::Tensor head_mask_;  ///< [heads, 1]; undefined without padding
  bool gather_output_;
  std::shared_ptr<const GqaQkvLora> lora_;  ///< null: no adapter
};

}  // namespace trellis::trainer
