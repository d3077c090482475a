#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Where a tensor lies in its un-sharded whole, of this rank's part of the sequence with context
/// parallelism: index i of dimension `dim` is index `rows`[i]
/// there, of `total`. `dim` −1: it is the whole.
struct ShardPlace {
  int dim = -1;
  std::int64_t total = 0;
  std::vector<RowRange> rows = {};

  static ShardPlace whole() { return {}; }
  /// The `tp.rank`-th of equal parts of dimension `dim`, of which this tensor has `size`.
  static ShardPlace part(int dim, std::int64_t size, const ParallelGroup& tp);
};

/// A stream of random numbers on a device.
[[nodiscard]] at::Generator generator_on(at::Device device, std::uint64_t seed);

/// Dropout whose mask does not depend on the layout. It is a function of (seed, step, micro-batch,
/// path, place in the un-sharded tensor): TP ranks draw different parts of one mask in sharded
/// regions and equal masks outside; recompute draws the same mask again; any layout drops what one
/// rank drops.
class Dropout {
 public:
  /// `path` names the mask's stream. Throws ConfigError unless 0 ≤ probability ≤ 1.
  Dropout(const ModuleContext& context, const std::string& path, double probability);
  /// Zeroes elements with the probability and scales the others by 1/(1 − probability). In an
  /// evaluation: the input.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const ShardPlace& place) const;
  /// An activation of the residual stream: [s, b, h], or [s/TP, b, h] with sequence parallelism.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;
  /// 1 where an element is kept, else 0. `sizes`: of this rank's part. With context parallelism
  /// dimension 0 is the sequence. `dtype`: the derivative
  /// keeps the mask in the input's dtype, as a composite dropout does on PyTorch/XLA
  /// (aten/src/ATen/native/Dropout.cpp: noise like the input; only native devices keep a byte an
  /// element).
  [[nodiscard]] at::Tensor keep_mask(at::IntArrayRef sizes, const ShardPlace& place,
                                     at::ScalarType dtype = at::kBool) const;
  [[nodiscard]] double probability() const { return probability_; }

 private:
  /// The place in the whole sequence of one that counts in this rank's part of it.
  [[nodiscard]] ShardPlace in_sequence(const ShardPlace& place) const;
  [[nodiscard]] at::Tensor draw_mask(std::vector<std::int64_t> sizes, const ShardPlace& place,
                                     at::ScalarType dtype) const;
  [[nodiscard]] at::Tensor draw_chunk(std::vector<std::int64_t> sizes, std::int64_t chunk,
                                      at::ScalarType dtype) const;

  std::string path_;
  double probability_;
  std::int64_t seed_;
  at::Device device_;
  ParallelGroup tp_;
  bool sequence_parallel_;
  SequenceShard sequence_;  ///< of a length that is not known here
  std::shared_ptr<const StepPosition> position_;
};

}  // namespace trellis::trainer
