#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/compiler/fusion/chain.h"

namespace trellis::device {

inline constexpr std::int64_t kPartitions = 128;  ///< of SBUF

/// How a chain's iteration space is laid on the core: loops outside, one dimension on partitions,
/// the rest in the free dimensions.
struct ChainSpace {
  struct Dimension {
    std::int64_t size = 1;
    std::vector<std::int64_t> strides;  ///< per operand: inputs in order of values, then outputs
  };
  std::vector<Dimension> loops;
  Dimension rows;  ///< on partitions
  Dimension
      group;  ///< neighbouring rows that lie after each other on one partition, before the columns
  std::vector<Dimension> columns;  ///< free, outermost first; the last one may be cut into tiles
  std::int64_t remainder = 0;      ///< elements of a one-dimensional space after rows × columns
  std::int64_t remainder_at = 0;

  [[nodiscard]] std::int64_t width() const;
};

/// Rows shorter than what an instruction costs to start come several to a partition: as many as
/// keep the partitions full, divide the rows and make at most `widest` elements.
void group_rows(ChainSpace& space, std::int64_t widest);

/// Operand strides of `chain`: inputs, then outputs.
[[nodiscard]] std::vector<std::vector<std::int64_t>> operand_strides(const Chain& chain);

/// `widest`: the most free elements that SBUF takes at once.
[[nodiscard]] ChainSpace plan_space(const Chain& chain, std::int64_t widest);

}  // namespace trellis::device
