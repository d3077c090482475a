#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint {

/// Where a box of a global tensor lies in the checkpoint.
struct SourcePart {
  std::size_t tensor = 0;  ///< index of the stored tensor
  Shape global_shape, global_offset;
  Box local;  ///< in the stored tensor
};

/// All parts of a checkpoint by the key of the global tensor.
using SourceIndex = std::map<std::string, std::vector<SourcePart>>;

/// One copy from a stored tensor into a local one.
struct CopyStep {
  std::size_t tensor = 0;  ///< stored
  Box from;                ///< in the stored tensor
  Shape into;              ///< offset in the local tensor; the shape is that of `from`
  bool operator==(const CopyStep&) const = default;
};

/// The copies that fill one part of a local tensor.
struct PartReads {
  std::vector<CopyStep> copies;
  std::int64_t elements = 0;  ///< that the copies fill
};

/// Where the elements of `part` come from. Shapes that differ are an error unless the part allows
/// it: then what both have is copied. Throws ConfigError that names the key: another shape, or
/// elements that no stored part has. REQUIRES: the index has the key.
[[nodiscard]] PartReads plan_reads(const ShardedPart& part, const std::string& key,
                                   const SourceIndex& index);

}  // namespace trellis::checkpoint
