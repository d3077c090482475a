#include "trainer/files/checkpoint/plan/read_plan.h"

#include <algorithm>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

/// The largest shape that fits in both.
Shape common_shape(const Shape& a, const Shape& b) {
  Shape common = a;
  for (std::size_t axis = 0; axis < a.size(); ++axis) common[axis] = std::min(a[axis], b[axis]);
  return common;
}

void check_shape(const ShardedTensor& wanted, const std::string& key, const Shape& stored) {
  const bool fits = wanted.allow_shape_mismatch ? wanted.global_shape.size() == stored.size()
                                                : wanted.global_shape == stored;
  if (fits) return;
  throw ConfigError("checkpoint: " + key + " has the shape " + text_of(stored) +
                    ", the model expects " + text_of(wanted.global_shape) +
                    "; load it with the model's sizes of the run that saved it");
}

Shape moved(const Shape& offset, const Shape& from, const Shape& to) {
  Shape result = offset;
  for (std::size_t axis = 0; axis < offset.size(); ++axis) result[axis] += to[axis] - from[axis];
  return result;
}

}  // namespace

PartReads plan_reads(const ShardedPart& part, const std::string& key, const SourceIndex& index) {
  const std::vector<SourcePart>& sources = index.at(key);
  check_shape(part.tensor, key, sources.front().global_shape);
  const Box wanted = part.tensor.box();
  PartReads reads;
  for (const SourcePart& source : sources) {
    const Box common = intersection(wanted, {source.global_offset, source.local.shape});
    if (common.elements() == 0) continue;
    reads.copies.push_back(
        {source.tensor,
         {moved(common.offset, source.global_offset, source.local.offset), common.shape},
         moved(common.offset, wanted.offset, part.local.offset)});
    reads.elements += common.elements();
  }
  const Shape both = common_shape(part.tensor.global_shape, sources.front().global_shape);
  const Box needed = intersection(wanted, {Shape(both.size(), 0), both});
  if (reads.elements == needed.elements()) return reads;
  throw ConfigError("checkpoint: of " + key + " " + text_of(wanted.shape) + " at " +
                    text_of(wanted.offset) + " it holds " + std::to_string(reads.elements) +
                    " elements, expected " + std::to_string(needed.elements()) +
                    "; a shard is missing, load another checkpoint");
}

}  // namespace trellis::checkpoint
