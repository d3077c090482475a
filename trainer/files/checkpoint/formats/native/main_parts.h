#pragma once

#include <vector>

#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint::native {

/// The ranks that own the file which a tensor is written to.
struct Owner {
  int shards = 1;   ///< data-parallel ranks with a file each: those after them hold copies
  int ep_rank = 0;  ///< with EP there is such a file for each of these: the first one counts for
                    ///< what all of them hold
  bool of_experts = false;
};

/// The parts of which the owner's tensor is the main replica.
[[nodiscard]] std::vector<StoredPart> main_parts(const std::vector<ShardedPart>& parts,
                                                 const Owner& owner);

}  // namespace trellis::checkpoint::native
