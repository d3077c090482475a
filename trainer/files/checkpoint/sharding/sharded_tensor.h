#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {

using Shape = std::vector<std::int64_t>;

/// Elements of a tensor of this shape; 1 for a scalar.
[[nodiscard]] std::int64_t elements_of(const Shape& shape);
/// "[4, 8]"
[[nodiscard]] std::string text_of(const Shape& shape);

/// A part of a tensor: along each axis `shape` indices from `offset` on.
struct Box {
  Shape offset, shape;
  [[nodiscard]] std::int64_t elements() const { return elements_of(shape); }
  bool operator==(const Box&) const = default;
};

/// The common part of two boxes of one tensor; its shape has a 0 where they do not meet.
[[nodiscard]] Box intersection(const Box& a, const Box& b);

/// Which copy of some bytes a holder has, one number per kind of copying (Megatron's replica_id).
/// All zeros, or empty: the main one, which is saved.
using ReplicaId = std::vector<int>;
[[nodiscard]] bool is_main_replica(const ReplicaId& id);

/// A shard lies at the `offset`-th of `fragmentations` equal parts of an axis.
struct RankOffset {
  int axis = 0;
  std::int64_t offset = 0, fragmentations = 1;
};

/// The part of a global tensor that a rank's tensor is: a description without data. Its identity is
/// `key`, not its place in a dictionary. Megatron-core's ShardedTensor, field by field.
struct ShardedTensor {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape local_shape;  ///< without the prepended axes
  Shape global_shape;
  Shape global_offset;        ///< of the first element
  Shape axis_fragmentations;  ///< equal parts of each global axis; empty: no regular grid
  ReplicaId replica_id;
  int prepend_axis_num = 0;  ///< leading global axes that the local tensor does not have
  /// The global shape may be another one in the checkpoint: what is missing is zero, what it has
  /// more is left out.
  bool allow_shape_mismatch = false;

  /// `offsets` count axes with the prepended ones. Throws ConfigError for an axis, a part or a
  /// number of parts that cannot be.
  static ShardedTensor from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                         const std::vector<RankOffset>& offsets,
                                         ReplicaId replica_id = {}, int prepend_axis_num = 0);
  /// The elements of this shard, in global coordinates.
  [[nodiscard]] Box box() const;
  bool operator==(const ShardedTensor&) const = default;
};

/// A part of a local tensor, and what it is globally. `local` counts in the local tensor. A local
/// tensor that is several global ones, such as fused projections, is a list of them, and states of
/// the optimizer have the same parts under other keys: Megatron's ShardedTensorFactory. Elements
/// that no part covers are padding; a tensor without parts is not saved: Megatron's
/// LocalNonpersistentObject.
struct ShardedPart {
  ShardedTensor tensor;
  Box local;
  bool operator==(const ShardedPart&) const = default;
};

/// A value that is written whole and cannot be resharded, such as the state of a generator.
struct ShardedObject {
  std::string key;
  Shape global_shape, global_offset;  ///< of a grid of objects
  ReplicaId replica_id;
  /// "rng_state/shard_0.1_2.2": Megatron's name of it in a checkpoint.
  [[nodiscard]] std::string unique_key() const;
  bool operator==(const ShardedObject&) const = default;
};

}  // namespace trellis::checkpoint
