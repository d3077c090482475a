#pragma once

#include <functional>
#include <map>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

/// The state that a rank of any program saves, under the program's own names: the objects of
/// Megatron-core's dist_checkpointing. In a checkpoint each object has the key that it carries.
namespace trellis::checkpoint::distributed {

struct StateItem;
using StateDict = std::map<std::string, StateItem>;

/// A tensor of this rank, of what.local_shape; a load fills it in its place.
struct Shard {
  ShardedTensor what;
  at::Tensor data;
};

/// A value that is saved whole; a load replaces `data`.
struct ObjectShard {
  ShardedObject what;
  Value data;
};

/// A tensor that is others in a checkpoint, such as a fused projection. `build` makes them, of
/// tensors that share the memory of `data` or do not; after a load `merge` makes `data` of them. A
/// state of an optimizer takes the factory of its weight, with another key and its values.
struct ShardedTensorFactory {
  std::string key;
  at::Tensor data;
  ReplicaId replica_id;
  std::function<StateDict(const std::string& key, const at::Tensor& data, const ReplicaId&)> build;
  std::function<at::Tensor(const StateDict& built)> merge;
};

/// A value that is not saved; a load leaves it unchanged.
struct LocalNonpersistentObject {
  Value data;
};

/// A Value is common: the same on all ranks, saved by the first one. A load drops those of the
/// caller and sets those of the checkpoint.
struct StateItem
    : std::variant<Shard, ObjectShard, ShardedTensorFactory, LocalNonpersistentObject, Value> {
  using variant::variant;
};

}  // namespace trellis::checkpoint::distributed
