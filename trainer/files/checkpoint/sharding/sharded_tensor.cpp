#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

std::string joined(const Shape& numbers, const char* separator) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += (i == 0 ? "" : separator) + std::to_string(numbers[i]);
  return text;
}

void check_rank_offset(const std::string& key, const RankOffset& at, std::size_t axes) {
  const bool good = at.axis >= 0 && static_cast<std::size_t>(at.axis) < axes &&
                    at.fragmentations >= 1 && at.offset >= 0 && at.offset < at.fragmentations;
  if (good) return;
  throw ConfigError("sharded tensor " + key + ": axis " + std::to_string(at.axis) + ", part " +
                    std::to_string(at.offset) + " of " + std::to_string(at.fragmentations) +
                    ": expected an axis below " + std::to_string(axes) +
                    " and a part below their number; correct the offsets");
}

}  // namespace

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string text_of(const Shape& shape) { return "[" + joined(shape, ", ") + "]"; }

Box intersection(const Box& a, const Box& b) {
  Box common{a.offset, a.shape};
  for (std::size_t axis = 0; axis < a.offset.size(); ++axis) {
    const std::int64_t first = std::max(a.offset[axis], b.offset[axis]);
    const std::int64_t end =
        std::min(a.offset[axis] + a.shape[axis], b.offset[axis] + b.shape[axis]);
    common.offset[axis] = first;
    common.shape[axis] = std::max<std::int64_t>(end - first, 0);
  }
  return common;
}

bool is_main_replica(const ReplicaId& id) {
  return std::all_of(id.begin(), id.end(), [](int copy) { return copy == 0; });
}

ShardedTensor ShardedTensor::from_rank_offsets(std::string key, DType dtype, Shape local_shape,
                                               const std::vector<RankOffset>& offsets,
                                               ReplicaId replica_id, int prepend_axis_num) {
  ShardedTensor shard;
  shard.global_shape.assign(static_cast<std::size_t>(prepend_axis_num), 1);
  shard.global_shape.insert(shard.global_shape.end(), local_shape.begin(), local_shape.end());
  shard.global_offset.assign(shard.global_shape.size(), 0);
  shard.axis_fragmentations.assign(shard.global_shape.size(), 1);
  for (const RankOffset& at : offsets) {
    check_rank_offset(key, at, shard.global_shape.size());
    const auto axis = static_cast<std::size_t>(at.axis);
    const std::int64_t size = at.axis < prepend_axis_num
                                  ? 1
                                  : local_shape[axis - static_cast<std::size_t>(prepend_axis_num)];
    shard.global_shape[axis] = at.fragmentations * size;
    shard.global_offset[axis] = at.offset * size;
    shard.axis_fragmentations[axis] = at.fragmentations;
  }
  shard.key = std::move(key);
  shard.dtype = dtype;
  shard.local_shape = std::move(local_shape);
  shard.replica_id = std::move(replica_id);
  shard.prepend_axis_num = prepend_axis_num;
  return shard;
}

Box ShardedTensor::box() const {
  Box box{global_offset, Shape(static_cast<std::size_t>(prepend_axis_num), 1)};
  box.shape.insert(box.shape.end(), local_shape.begin(), local_shape.end());
  return box;
}

std::string ShardedObject::unique_key() const {
  return key + "/shard_" + joined(global_offset, ".") + "_" + joined(global_shape, ".");
}

}  // namespace trellis::checkpoint
