#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

struct CompareOptions {
  /// Elements a and b are equal when |a − b| ≤ tolerance · (1 + |b|). 0: the same bits, except that
  /// +0 equals −0 and any not-a-number any other.
  double tolerance = 0;
  /// Zeros of different signs and different not-a-numbers differ too. REQUIRES: tolerance 0.
  bool every_bit = false;
  bool weights_only = false;   ///< no optimizer states
  bool ignore_dtypes = false;  ///< values of different types are compared, and the types are not
};

/// How a tensor of one checkpoint differs from that of the other.
struct TensorDifference {
  enum class Kind { kOnlyInA, kOnlyInB, kShape, kDType, kValues };
  std::string key;
  Kind kind = Kind::kValues;
  TensorEntry a, b;                 ///< empty where there is none
  std::int64_t elements = 0;        ///< of kValues: that differ
  double max_abs = 0, max_rel = 0;  ///< |a − b|, and that over max(|a|, |b|); of all elements
  double l2 = 0;                    ///< √Σ(a − b)²
};
/// "only in A", "shape", …
[[nodiscard]] const char* name(TensorDifference::Kind kind);

struct Comparison {
  std::int64_t tensors = 0;  ///< names in either
  std::int64_t bytes = 0;    ///< compared, of one side
  std::int64_t padded = 0;   ///< tables of vocabularies of different sizes: the rows of both count
  std::vector<TensorDifference> differences;  ///< by key
};

/// Compares all tensors of two checkpoints, of whatever formats and layouts. Needs memory for a
/// piece of a tensor of each. `progress`: tensors that are done, and their number.
[[nodiscard]] Comparison compare(const TensorSource& a, const TensorSource& b,
                                 const CompareOptions& options,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace trellis::checkpoint
