#include "sim/job/rank_fold.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace trellis::sim {
namespace {

/// The lowest rank with the same coordinates along the axes that are not folded.
std::vector<int> lowest_equal(const std::vector<int>& mesh, const std::vector<bool>& folded) {
  TRELLIS_CHECK(mesh.size() == folded.size(), "one switch per axis");
  std::vector<int> lowest{0};
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (mesh[axis] < 1)
      throw ConfigError(
          fmt::format("equal ranks: axis {} of the mesh: expected an extent of at least 1, got {}",
                      axis, mesh[axis]));
    const auto inner = lowest.size();
    lowest.reserve(inner * static_cast<std::size_t>(mesh[axis]));
    for (int c = 1; c < mesh[axis]; ++c) {
      for (std::size_t i = 0; i < inner; ++i)
        lowest.push_back(lowest[i] + (folded[axis] ? 0 : c * static_cast<int>(inner)));
    }
  }
  return lowest;
}

/// How far a group can be moved along one axis so that it lies as before: as evenly spaced
/// coordinates within blocks of that shape.
std::vector<int> shifts_along(const std::vector<int>& sorted, int extent) {
  const int count = static_cast<int>(sorted.size());
  const int stride = count > 1 ? sorted[1] - sorted[0] : 1;
  for (int i = 1; i < count; ++i) {
    if (sorted[static_cast<std::size_t>(i)] - sorted[static_cast<std::size_t>(i - 1)] != stride)
      return {0};
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

RankFold RankFold::along_axes(const std::vector<int>& mesh, const std::vector<bool>& folded) {
  return with_classes(mesh, lowest_equal(mesh, folded));
}

RankFold RankFold::with_classes(std::vector<int> mesh, const std::vector<int>& equal_to) {
  RankFold fold;
  const auto world = std::accumulate(
      mesh.begin(), mesh.end(), std::size_t{1},
      [](std::size_t product, int n) { return product * static_cast<std::size_t>(n); });
  if (equal_to.size() != world)
    throw ConfigError(
        fmt::format("equal ranks: a mesh of {} ranks, but {} entries", world, equal_to.size()));
  for (int rank = 0; rank < static_cast<int>(world); ++rank) {
    const int lowest = equal_to[static_cast<std::size_t>(rank)];
    if (lowest < 0 || lowest > rank || equal_to[static_cast<std::size_t>(lowest)] != lowest) {
      throw ConfigError(
          fmt::format("equal ranks: rank {}: expected the lowest rank that it is equal to, got {}",
                      rank, lowest));
    }
    if (lowest == rank) {
      fold.representatives_.push_back(rank);
      fold.counts_.push_back(0);
    }
    const auto& heads = fold.representatives_;
    const int seat =
        static_cast<int>(std::lower_bound(heads.begin(), heads.end(), lowest) - heads.begin());
    fold.seats_.push_back(seat);
    ++fold.counts_[static_cast<std::size_t>(seat)];
  }
  fold.mesh_ = std::move(mesh);
  return fold;
}

std::vector<std::vector<int>> RankFold::shifts_of(const std::vector<int>& group) const {
  std::vector<std::vector<int>> shifts;
  int weight = 1;
  for (const int extent : mesh_) {
    std::set<int> own;
    for (const int rank : group) own.insert(rank / weight % extent);
    shifts.push_back(shifts_along({own.begin(), own.end()}, extent));
    weight *= extent;
  }
  return shifts;
}

bool RankFold::has_equal_members(const std::vector<int>& group, const std::vector<int>& other,
                                 Members members) const {
  const auto is_like = [this](int a, int b) { return seat(a) == seat(b); };
  if (std::equal(other.begin(), other.end(), group.begin(), is_like)) return true;
  if (members == Members::kOneByOne) return false;
  std::vector<int> count(counts_.size());
  for (const int rank : group) ++count[static_cast<std::size_t>(seat(rank))];
  return std::none_of(other.begin(), other.end(),
                      [&](int rank) { return --count[static_cast<std::size_t>(seat(rank))] < 0; });
}

bool RankFold::are_equal(const std::vector<int>& a, const std::vector<int>& b,
                         Members members) const {
  if (a == b) return true;
  if (empty() || a.size() != b.size()) return false;
  const int shift = b.front() - a.front();
  const bool is_moved = std::equal(a.begin(), a.end(), b.begin(),
                                   [shift](int from, int to) { return to - from == shift; });
  if (!is_moved) return false;
  std::vector<int> before, after;
  add_coordinates(a.front(), before);
  add_coordinates(b.front(), after);
  const auto allowed = allowed_shifts(shifts_of(a));
  for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
    if (!allowed[axis][static_cast<std::size_t>(after[axis] - before[axis] + mesh_[axis])])
      return false;
  }
  return has_equal_members(a, b, members);
}

std::vector<std::vector<int>> RankFold::equal_groups(const std::vector<int>& group) const {
  std::vector<int> shifts{0};
  int weight = 1;
  const auto along = shifts_of(group);
  for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
    std::vector<int> further;
    for (const int shift : shifts) {
      for (const int more : along[axis]) further.push_back(shift + more * weight);
    }
    shifts = std::move(further);
    weight *= mesh_[axis];
  }
  std::vector<std::vector<int>> groups{group};
  for (const int shift : shifts) {
    if (shift == 0) continue;
    std::vector<int> other = group;
    for (int& rank : other) rank += shift;
    if (has_equal_members(group, other, Members::kOneByOne)) groups.push_back(std::move(other));
  }
  return groups;
}

void RankFold::add_coordinates(int rank, std::vector<int>& coordinates) const {
  for (const int extent : mesh_) {
    coordinates.push_back(rank % extent);
    rank /= extent;
  }
}

std::vector<std::vector<bool>> RankFold::allowed_shifts(
    const std::vector<std::vector<int>>& along) const {
  std::vector<std::vector<bool>> allowed;
  for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
    std::vector<bool>& mine = allowed.emplace_back(2 * static_cast<std::size_t>(mesh_[axis]));
    for (const int shift : along[axis]) mine[static_cast<std::size_t>(shift + mesh_[axis])] = true;
  }
  return allowed;
}

std::vector<std::vector<int>> RankFold::equal_groups(const std::vector<int>& group,
                                                     const std::vector<int>& near,
                                                     Members members) const {
  if (empty()) return {group};
  const std::vector<std::vector<bool>> allowed = allowed_shifts(shifts_of(group));
  const std::size_t axes = mesh_.size();
  std::vector<int> of_members;
  std::set<int> seats;
  for (const int member : group) {
    add_coordinates(member, of_members);
    seats.insert(seat(member));
  }
  std::set<int> shifts;
  for (const int rank : near) {
    std::vector<int> here;
    add_coordinates(rank, here);
    for (std::size_t m = 0; m < group.size(); ++m) {
      bool fits =
          members == Members::kAnyOrder ? seats.contains(seat(rank)) : seat(rank) == seat(group[m]);
      for (std::size_t axis = 0; fits && axis < axes; ++axis)
        fits = allowed[axis][static_cast<std::size_t>(here[axis] - of_members[m * axes + axis] +
                                                      mesh_[axis])];
      if (fits && rank != group[m]) shifts.insert(rank - group[m]);
    }
  }
  std::vector<std::vector<int>> groups{group};
  for (const int shift : shifts) {
    std::vector<int> other = group;
    for (int& rank : other) rank += shift;
    if (has_equal_members(group, other, members)) groups.push_back(std::move(other));
  }
  return groups;
}

}  // namespace trellis::sim
