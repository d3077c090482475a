#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {

/// True if ModuleContext::lora gives the layer at `path` an adapter.
[[nodiscard]] bool is_adapted(const ModuleContext& context, const std::string& path);
/// Context in which a layer's adapter is built: `context` without adapters.
[[nodiscard]] ModuleContext context_of_adapter(const ModuleContext& context,
                                               bool sequence_parallel);
/// True if a fine-tuning with adapters changes the weight: an adapter, a weight of a module that is
/// trained as a whole, a bias that lora_bias names. `alias`: as for LoraSection::targets_module.
[[nodiscard]] bool is_trained(const LoraSection& lora, const Parameter& parameter,
                              const std::string& alias = "");

// Every adapter is made with these.
/// A starts so.
[[nodiscard]] WeightInit adapter_init(const LoraSection& lora);
Parameter& make_adapter(const ModuleContext& context, const WeightSpec& spec);
/// Where dropout's mask lies: the sequence, or the columns of the input, may be this rank's part.
[[nodiscard]] ShardPlace mask_place(const at::Tensor& input, int dim, bool is_part,
                                    const ParallelGroup& tp);

/// Low-rank adapters on a ColumnParallelLinear: output_i += scale · B_i · A_i ·
/// dropout(input), with A_i [rank, in] on every rank and the rows of B_i sharded as those of the
/// weight. A starts Kaiming-uniform, or normal, B at zero: at first the layer is as it was. Weights
/// that lie in one (gate and up) share an A.
class ColumnParallelLora {
 public:
  /// `path`, `outputs`, `stride`: the layer's; those of `outputs` get adapters that `lora` targets,
  /// under their name or `alias`. Names: "<path>.<output>.lora_A.weight", "….lora_B.weight".
  ColumnParallelLora(const ModuleContext& context, const LoraSection& lora, const std::string& path,
                     std::int64_t input_size,
                     const std::vector<ColumnParallelLinear::Output>& outputs,
                     const std::string& alias, int stride = 1);
  /// `input`: the layer's, [s, b, in] ([s/TP, b, in] with sequence parallelism: only its product
  /// with A is gathered).
  void add_to(std::vector<at::Tensor>& outputs, const at::Tensor& input) const;

 private:
  double scale_;
  std::shared_ptr<StepPosition> position_;
  Dropout dropout_;
  std::vector<std::size_t> places_;  ///< of the layer's outputs
  std::vector<at::Tensor> a_;
  std::vector<ColumnShards> b_;
};

/// The same next to a ParallelEmbedding: A [vocabulary, rank], whose rows are sharded as those of
/// the weight, starts at zero, B [h, rank] normal. Tokens are not dropped.
class EmbeddingLora {
 public:
  EmbeddingLora(const ModuleContext& context, const LoraSection& lora, const std::string& path,
                std::int64_t num_embeddings, std::int64_t embedding_dim);
  /// `output`: the layer's of `input_ids`.
  [[nodiscard]] at::Tensor add_to(const at::Tensor& output, const at::Tensor& input_ids) const;

 private:
  double scale_;
  std::shared_ptr<StepPosition> position_;
  ParallelEmbedding a_;
  at::Tensor b_;
};

/// The same next to a RowParallelLinear: the columns of A are sharded as those of the weight, B
/// [out, rank] lies on every rank.
class RowParallelLora {
 public:
  /// `partition`: of the input's columns, the layer's; none: parts of equal size.
  RowParallelLora(const ModuleContext& context, const LoraSection& lora, const std::string& path,
                  std::int64_t input_size, std::int64_t output_size,
                  const std::optional<Partition>& partition = {});
  /// `input`: [s, b, in/TP] → `output` with the adapter's product, [s, b, out] ([s/TP, b, out] with
  /// sequence parallelism).
  [[nodiscard]] at::Tensor add_to(const at::Tensor& output, const at::Tensor& input) const;

 private:
  double scale_;
  std::shared_ptr<StepPosition> position_;
  Dropout dropout_;
  RowParallelLinear a_;
  at::Tensor b_;
  ShardPlace columns_;  ///< this rank's of the un-sharded input
};

}  // namespace trellis::trainer
