#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/modules/core_attention.h"
#include "trainer/modules/kv_cache.h"
#include "trainer/modules/module_names.h"
#include "trainer/modules/norm.h"
#include "trainer/modules/rotary_embedding.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/qkv_linear.h"
#include "trainer/parallel_layers/qkv_lora.h"

namespace trellis::trainer {

struct RouterRecord;

/// Data that all layers share for one micro-batch.
struct SequenceContext {
  RotaryTables rotary;                   ///< undefined tensors: positions are in the embedding
  at::Tensor allowed;                    ///< AttentionMask::allowed(); not with a ring
  RingContext ring;                      ///< with context parallelism
  std::shared_ptr<RouterRecord> router;  ///< of a model with experts
  KvCache* cache = nullptr;              ///< decoding: of the tokens before
};

/// Queries, keys and values from one input, sharded by heads; the sequence is gathered once.
class QkvProjection {
 public:
  /// Throws ConfigError when TP does not divide the key/value heads, unless the model asks for
  /// GQAQKVColumnParallelLinear, which replicates them over the parallel state's key/value groups.
  QkvProjection(const ModuleContext& context, const std::string& path, const ModelSection& config,
                QkvLayout layout);
  using Output = GQAQKVColumnParallelLinear::Output;
  [[nodiscard]] Output forward(const at::Tensor& input) const;
  /// Columns of the output projection that belong to this projection's query heads.
  [[nodiscard]] const Partition& query_columns() const { return query_columns_; }

 private:
  QkvLayout layout_;
  std::int64_t head_dim_;
  std::variant<ColumnParallelLinear, GQAQKVColumnParallelLinear> projections_;
  std::optional<ColumnParallelLora> lora_;
  std::optional<GqaQkvLora> gqa_lora_;
  Partition query_columns_;
};

/// Norm of queries or keys, [s, b, heads/TP, d]: none, over each head, or across all heads.
using HeadsNorm = std::variant<std::monostate, HeadNorm, ShardedNorm>;

/// Activations are [s, b, h], or [s/TP, b, h] with sequence parallelism.
class SelfAttention {
 public:
  /// `layer`: its index, from 0.
  SelfAttention(const ModuleContext& context, const std::string& path, const ModelSection& config,
                const ModuleNames& names, int layer);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const SequenceContext& sequence) const;

 private:
  int layer_;
  QkvProjection qkv_;
  std::optional<double> clip_;
  HeadsNorm query_norm_, key_norm_;
  CoreAttention core_;
  RowParallelLinear dense_;
  std::optional<RowParallelLora> dense_lora_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
