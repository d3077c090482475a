#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/adapters/adapter_weights.h"

namespace trellis::checkpoint::adapters {

/// A checkpoint whose adapters are part of the weights that they adapt: W + scale · B · A, summed
/// in double. Adapters and their states are left out.
class MergedSource final : public TensorSource {
 public:
  /// `scale`: LoraSection::scale() of the training. `source` outlives this. Throws as
  /// adapters_of().
  MergedSource(const TensorSource& source, double scale);

  [[nodiscard]] const std::string& address() const override { return source_.address(); }
  [[nodiscard]] const char* format() const override { return source_.format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

 private:
  /// The product's part of `box`, row-major.
  [[nodiscard]] std::vector<double> product(const AdapterSlice& slice, const Box& box) const;

  const TensorSource& source_;
  double scale_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, AdapterSlice> by_weight_;
};

/// Elements of `box` as doubles.
[[nodiscard]] std::vector<double> read_wide(const TensorSource& source, const TensorEntry& tensor,
                                            const Box& box);

}  // namespace trellis::checkpoint::adapters
