#pragma once

#include <vector>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint {

/// Checks what all ranks together are about to save: of each key one dtype, global shape and grid,
/// and exactly one main replica of every element. Throws one ConfigError with every problem;
/// "Invalid access pattern" comes with the count tensor, how often each cell of the grid has a main
/// replica. Shards that form no regular grid are checked on the grid of all their borders.
void validate_sharding(const std::vector<ShardedTensor>& shards_of_all_ranks);
/// The same of objects: each place of a key's grid has exactly one main replica.
void validate_sharding(const std::vector<ShardedObject>& objects_of_all_ranks);

}  // namespace trellis::checkpoint
