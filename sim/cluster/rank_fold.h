#pragma once

#include <cstdint>
#include <vector>

namespace trellis::sim {

/// Which ranks of a world are equal, so that one of them stands for all. The ranks form a mesh, the first axis fastest: rank = c0 + n0·(c1 + n1·…).
/// Along an axis the coordinates are parted into cells; ranks whose coordinates lie in the same cells are equal, and the one with the lowest
/// coordinates represents them. An empty fold: every rank is itself.
class RankFold {
 public:
  RankFold() = default;
  /// `cells[axis][coordinate]`: the lowest coordinate of its cell. Throws ConfigError when that is no such partition.
  explicit RankFold(std::vector<std::vector<int>> cells);
  /// Axes that are folded into one cell, or not at all.
  RankFold(const std::vector<int>& mesh, const std::vector<bool>& folded);

  [[nodiscard]] bool empty() const { return cells_.empty(); }
  [[nodiscard]] const std::vector<std::vector<int>>& cells() const { return cells_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// Ascending.
  [[nodiscard]] const std::vector<int>& representatives() const { return representatives_; }
  /// Place of a rank's representative in representatives(); the rank itself for an empty fold.
  [[nodiscard]] int seat(int rank) const { return empty() ? rank : seats_[static_cast<std::size_t>(rank)]; }
  /// How many ranks the representative stands for, itself included.
  [[nodiscard]] int stands_for(int representative) const;
  /// All groups of the world that do what this group does at the same moment, itself first: those that lie in the mesh as it does and whose
  /// members are, one by one, equal to its members.
  [[nodiscard]] std::vector<std::vector<int>> equal_groups(const std::vector<int>& group) const;
  auto operator<=>(const RankFold&) const = default;

 private:
  [[nodiscard]] int extent(std::size_t axis) const { return static_cast<int>(cells_[axis].size()); }
  [[nodiscard]] std::vector<int> coordinates(int rank) const;

  std::vector<std::vector<int>> cells_;
  std::vector<int> seats_;  ///< by rank
  std::vector<int> representatives_;
  int world_size_ = 0;
};

}  // namespace trellis::sim
