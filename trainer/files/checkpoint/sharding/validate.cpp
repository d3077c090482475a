#include "trainer/files/checkpoint/sharding/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

/// Counts over a grid, row-major.
struct CountTensor {
  Shape shape;
  std::vector<int> counts;

  explicit CountTensor(Shape grid)
      : shape(std::move(grid)), counts(static_cast<std::size_t>(elements_of(shape)), 0) {}
  [[nodiscard]] bool all_ones() const {
    return std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
  }
  /// One more in each cell of the box.
  void add(const Box& cells, std::size_t axis = 0, std::int64_t index = 0) {
    if (axis == shape.size()) {
      ++counts[static_cast<std::size_t>(index)];
      return;
    }
    for (std::int64_t i = 0; i < cells.shape[axis]; ++i)
      add(cells, axis + 1, index * shape[axis] + cells.offset[axis] + i);
  }
  /// Nested lists, as torch prints them; of a long one the beginning.
  [[nodiscard]] std::string text() const {
    std::string nested = text_from(0, 0);
    constexpr std::size_t kMost = 400;
    return nested.size() <= kMost ? nested : nested.substr(0, kMost) + " …";
  }

 private:
  [[nodiscard]] std::string text_from(std::size_t axis, std::int64_t index) const {
    if (axis == shape.size()) return std::to_string(counts[static_cast<std::size_t>(index)]);
    std::string list = "[";
    for (std::int64_t i = 0; i < shape[axis]; ++i)
      list += (i == 0 ? "" : ", ") + text_from(axis + 1, index * shape[axis] + i);
    return list + "]";
  }
};

using Cuts = std::vector<Shape>;  // by axis, ascending

/// The borders of the regular grid that the shards name, and those of every shard.
Cuts cuts_of(const std::vector<const ShardedTensor*>& shards) {
  const ShardedTensor& first = *shards.front();
  std::vector<std::set<std::int64_t>> borders(first.global_shape.size());
  for (std::size_t axis = 0; axis < borders.size(); ++axis) {
    borders[axis] = {0, first.global_shape[axis]};
    if (first.axis_fragmentations.empty()) continue;
    const std::int64_t parts = first.axis_fragmentations[axis];
    for (std::int64_t part = 1; part < parts; ++part)
      borders[axis].insert(part * (first.global_shape[axis] / parts));
  }
  for (const ShardedTensor* shard : shards) {
    const Box box = shard->box();
    for (std::size_t axis = 0; axis < borders.size(); ++axis) {
      borders[axis].insert(box.offset[axis]);
      borders[axis].insert(box.offset[axis] + box.shape[axis]);
    }
  }
  Cuts cuts;
  for (const auto& axis : borders) cuts.emplace_back(axis.begin(), axis.end());
  return cuts;
}

Box cells_of(const Box& box, const Cuts& cuts) {
  Box cells;
  for (std::size_t axis = 0; axis < cuts.size(); ++axis) {
    const auto place = [&](std::int64_t border) {
      return std::lower_bound(cuts[axis].begin(), cuts[axis].end(), border) - cuts[axis].begin();
    };
    const auto begin = place(box.offset[axis]), end = place(box.offset[axis] + box.shape[axis]);
    cells.offset.push_back(begin);
    cells.shape.push_back(end - begin);
  }
  return cells;
}

std::string disagreement(const ShardedTensor& a, const ShardedTensor& b) {
  if (a.dtype != b.dtype) return std::string("dtype ") + name(a.dtype) + " and " + name(b.dtype);
  if (a.global_shape != b.global_shape)
    return "global shape " + text_of(a.global_shape) + " and " + text_of(b.global_shape);
  if (a.axis_fragmentations.empty() != b.axis_fragmentations.empty())
    return "a regular grid and none";
  if (a.allow_shape_mismatch != b.allow_shape_mismatch)
    return "allow_shape_mismatch true and false";
  return "";
}

std::string outside(const ShardedTensor& shard) {
  const Box box = shard.box();
  bool inside = box.offset.size() == shard.global_shape.size() &&
                box.shape.size() == shard.global_shape.size();
  for (std::size_t axis = 0; inside && axis < box.shape.size(); ++axis)
    inside = box.offset[axis] >= 0 && box.shape[axis] >= 0 &&
             box.offset[axis] + box.shape[axis] <= shard.global_shape[axis];
  if (inside) return "";
  return "a shard " + text_of(box.shape) + " at " + text_of(box.offset) +
         " is no part of the global shape " + text_of(shard.global_shape);
}

std::string problem_of(const std::vector<const ShardedTensor*>& shards) {
  for (const ShardedTensor* shard : shards) {
    if (std::string text = disagreement(*shards.front(), *shard); !text.empty())
      return "ranks disagree: " + text;
    if (std::string text = outside(*shard); !text.empty()) return text;
  }
  const Cuts cuts = cuts_of(shards);
  Shape grid;
  for (const Shape& axis : cuts) grid.push_back(static_cast<std::int64_t>(axis.size()) - 1);
  CountTensor counts(grid);
  for (const ShardedTensor* shard : shards) {
    if (is_main_replica(shard->replica_id)) counts.add(cells_of(shard->box(), cuts));
  }
  if (counts.all_ones()) return "";
  return "Invalid access pattern: main replicas of each cell of the grid " + text_of(grid) +
         ": expected one, got " + counts.text();
}

template <class Shard>
std::map<std::string, std::vector<const Shard*>> by_key(const std::vector<Shard>& shards) {
  std::map<std::string, std::vector<const Shard*>> result;
  for (const Shard& shard : shards) result[shard.key].push_back(&shard);
  return result;
}

}  // namespace

void validate_sharding(const std::vector<ShardedTensor>& shards_of_all_ranks) {
  Problems problems;
  for (const auto& [key, shards] : by_key(shards_of_all_ranks)) {
    if (const std::string text = problem_of(shards); !text.empty())
      problems.add("sharded tensor " + key, text);
  }
  problems.throw_if_any();
}

void validate_sharding(const std::vector<ShardedObject>& objects_of_all_ranks) {
  Problems problems;
  for (const auto& [key, objects] : by_key(objects_of_all_ranks)) {
    const Shape& grid = objects.front()->global_shape;
    CountTensor counts(grid);
    bool agree = true;
    for (const ShardedObject* object : objects) {
      agree = agree && object->global_shape == grid && object->global_offset.size() == grid.size();
      for (std::size_t axis = 0; agree && axis < grid.size(); ++axis)
        agree = object->global_offset[axis] >= 0 && object->global_offset[axis] < grid[axis];
      if (agree && is_main_replica(object->replica_id))
        counts.add({object->global_offset, Shape(grid.size(), 1)});
    }
    if (!agree) {
      problems.add("sharded object " + key, "ranks disagree about its grid " + text_of(grid));
    } else if (!counts.all_ones()) {
      problems.add("sharded object " + key,
                   "Invalid access pattern: main replicas of each place of the grid " +
                       text_of(grid) + ": expected one, got " + counts.text());
    }
  }
  problems.throw_if_any();
}

}  // namespace trellis::checkpoint
