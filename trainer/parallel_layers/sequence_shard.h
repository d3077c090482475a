#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/partition.h"

namespace trellis::trainer {

/// Which positions of a sequence one context-parallel rank holds, CP = 2 with eight positions:
///
///   contiguous   rank 0   0 1 2 3     rank 1   4 5 6 7      NxDT's order
///   balanced     rank 0   0 1 6 7     rank 1   2 3 4 5      attention costs all ranks alike
///
/// Positions of a rank always ascend.
struct SequenceShard {
  std::int64_t length = 0;  ///< of the whole sequence
  int rank = 0, size = 1;   ///< of the context-parallel group
  bool balanced = false;

  [[nodiscard]] std::int64_t local_length() const { return length / size; }
  /// The positions that rank `of` holds. REQUIRES: size divides length; twice the size when
  /// balanced.
  [[nodiscard]] std::vector<RowRange> rows(int of) const;
  /// This rank's rows of dimension `dim`: a view when contiguous. `of`: another rank's.
  [[nodiscard]] at::Tensor take(const at::Tensor& whole, std::int64_t dim) const {
    return take(whole, dim, rank);
  }
  [[nodiscard]] at::Tensor take(const at::Tensor& whole, std::int64_t dim, int of) const;
};

}  // namespace trellis::trainer
