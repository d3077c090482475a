#include "sim/cluster/rank_fold.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/error.h"

namespace trellis::sim {
namespace {

void check_cells(const std::vector<int>& cells, std::size_t axis) {
  const int n = static_cast<int>(cells.size());
  bool legal = n > 0;
  for (int c = 0; legal && c < n; ++c) {
    const int first = cells[static_cast<std::size_t>(c)];
    legal = first >= 0 && first <= c && cells[static_cast<std::size_t>(first)] == first;
  }
  if (!legal) throw ConfigError(fmt::format("equal ranks: axis {}: expected for each coordinate the lowest one of its cell, got [{}]", axis, fmt::join(cells, ", ")));
}

std::vector<std::vector<int>> cells_of(const std::vector<int>& mesh, const std::vector<bool>& folded) {
  TRELLIS_CHECK(mesh.size() == folded.size(), "one switch per axis");
  std::vector<std::vector<int>> cells;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    auto& own = cells.emplace_back();
    for (int c = 0; c < mesh[axis]; ++c) own.push_back(folded[axis] ? 0 : c);
  }
  return cells;
}

/// How far a group can be moved along one axis so that it lies as before: as evenly spaced coordinates within blocks of that shape.
std::vector<int> shifts_along(const std::vector<int>& sorted, int extent) {
  const int count = static_cast<int>(sorted.size());
  const int stride = count > 1 ? sorted[1] - sorted[0] : 1;
  for (int i = 1; i < count; ++i) {
    if (sorted[static_cast<std::size_t>(i)] - sorted[static_cast<std::size_t>(i - 1)] != stride) return {0};
  }
  const int block = stride * count, first = sorted.front();
  if (extent % block != 0 || first % block >= stride) return {0};
  std::vector<int> shifts;
  for (int start = 0; start < extent; start += block) {
    for (int offset = 0; offset < stride; ++offset) shifts.push_back(start + offset - first);
  }
  return shifts;
}

}  // namespace

RankFold::RankFold(const std::vector<int>& mesh, const std::vector<bool>& folded) : RankFold(cells_of(mesh, folded)) {}

RankFold::RankFold(std::vector<std::vector<int>> cells) : cells_(std::move(cells)), world_size_(1) {
  for (std::size_t axis = 0; axis < cells_.size(); ++axis) {
    check_cells(cells_[axis], axis);
    world_size_ *= extent(axis);
  }
  seats_.resize(static_cast<std::size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank) {
    const std::vector<int> at = coordinates(rank);
    int representative = 0, weight = 1;
    for (std::size_t axis = 0; axis < cells_.size(); ++axis) {
      representative += weight * cells_[axis][static_cast<std::size_t>(at[axis])];
      weight *= extent(axis);
    }
    if (representative == rank) representatives_.push_back(rank);
    const auto place = std::lower_bound(representatives_.begin(), representatives_.end(), representative);
    seats_[static_cast<std::size_t>(rank)] = static_cast<int>(place - representatives_.begin());
  }
}

std::vector<int> RankFold::coordinates(int rank) const {
  std::vector<int> at;
  for (std::size_t axis = 0; axis < cells_.size(); ++axis) {
    at.push_back(rank % extent(axis));
    rank /= extent(axis);
  }
  return at;
}

int RankFold::stands_for(int representative) const {
  if (empty()) return 1;
  const std::vector<int> at = coordinates(representative);
  int count = 1;
  for (std::size_t axis = 0; axis < cells_.size(); ++axis) count *= static_cast<int>(std::count(cells_[axis].begin(), cells_[axis].end(), at[axis]));
  return count;
}

std::vector<std::vector<int>> RankFold::equal_groups(const std::vector<int>& group) const {
  std::vector<std::vector<int>> groups{group};
  int weight = 1;
  for (std::size_t axis = 0; axis < cells_.size(); weight *= extent(axis), ++axis) {
    std::set<int> own;
    for (const int rank : group) own.insert(rank / weight % extent(axis));
    const std::vector<int> shifts = shifts_along({own.begin(), own.end()}, extent(axis));
    std::vector<std::vector<int>> moved;
    for (const auto& each : groups) {
      for (const int shift : shifts) {
        std::vector<int> other = each;
        for (int& rank : other) rank += shift * weight;
        const bool equal = std::equal(other.begin(), other.end(), group.begin(), [this](int a, int b) { return seat(a) == seat(b); });
        if (equal) moved.push_back(std::move(other));
      }
    }
    groups = std::move(moved);
  }
  const auto itself = std::find(groups.begin(), groups.end(), group);
  std::rotate(groups.begin(), itself, itself + 1);
  return groups;
}

}  // namespace trellis::sim
