#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint::adapters {

/// A tensor that fine-tuning of a configuration trains.
struct TrainedTensor {
  std::string key;
  Shape shape;  ///< global
  bool operator==(const TrainedTensor&) const = default;
};

/// Rows of queries, and of keys or values: how a fused projection is cut.
struct ProjectionRows {
  std::int64_t query = 0, key_value = 0;
};

/// Saved adapters as a model has them: exactly the tensors that it trains. Layers that lie in one
/// (q|k|v, gate|up) share an A and have the rows of all B's one after the other; saved ones may be
/// fused, separate, or fused in another way.
///
///   saved                         the model's
///   gate_proj.lora_A  [r, h]   =  gate_up_proj.lora_A  [r, h]     the same as up_proj.lora_A
///   gate_proj.lora_B  [f, r]   →  gate_up_proj.lora_B  [2f, r]    rows 0 … f−1
///   up_proj.lora_B    [f, r]   →                                  rows f … 2f−1
class FittedAdapter final : public TensorSource {
 public:
  /// Throws ConfigError with every problem: tensors that `wanted` has and `source` not, or the
  /// reverse (another set of targets), other shapes (another rank, another base model), layers
  /// that are fused in the model and whose A's differ. Weights and states of `source` that no one
  /// trains are left out.
  FittedAdapter(std::unique_ptr<TensorSource> source, const std::vector<TrainedTensor>& wanted,
                const ProjectionRows& projections);

  [[nodiscard]] const std::string& address() const override { return source_->address(); }
  [[nodiscard]] const char* format() const override { return source_->format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

 private:
  class Fitter;
  /// Rows of a saved tensor that are rows of a wanted one.
  struct Rows {
    const TensorEntry* from;
    std::int64_t first = 0;  ///< of `from`
    std::int64_t into = 0, count = 0;
  };
  std::unique_ptr<TensorSource> source_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::vector<Rows>> rows_;  ///< by wanted key
};

}  // namespace trellis::checkpoint::adapters
