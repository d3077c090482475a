#pragma once

#include <cstdint>
#include <vector>

namespace trellis::sim {

/// Classes of equal ranks of a world; one rank of a class represents all. The ranks form a mesh,
/// the first axis fastest: rank = c0 + n0·(c1 + n1·…); of equal ranks the lowest is the
/// representative. An empty fold: every rank is itself.
class RankFold {
 public:
  RankFold() = default;
  /// Ranks are equal that differ along `folded` axes only. Throws ConfigError when an axis has no
  /// extent.
  static RankFold along_axes(const std::vector<int>& mesh, const std::vector<bool>& folded);
  /// `equal_to[rank]`: the lowest rank that it is equal to. Throws ConfigError when it is not that.
  static RankFold with_classes(std::vector<int> mesh, const std::vector<int>& equal_to);

  [[nodiscard]] bool empty() const { return seats_.empty(); }
  [[nodiscard]] const std::vector<int>& mesh() const { return mesh_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(seats_.size()); }
  /// Ascending.
  [[nodiscard]] const std::vector<int>& representatives() const { return representatives_; }
  /// Place of a rank's representative in representatives(); the rank itself for an empty fold.
  [[nodiscard]] int seat(int rank) const {
    return empty() ? rank : seats_[static_cast<std::size_t>(rank)];
  }
  /// How many ranks the representative at a seat represents, itself included.
  [[nodiscard]] int represents(int seat) const {
    return empty() ? 1 : counts_[static_cast<std::size_t>(seat)];
  }
  /// All groups of the world that do what this group does at the same moment, itself first: those
  /// that lie in the mesh as it does and whose members are, one by one, equal to its members.
  [[nodiscard]] std::vector<std::vector<int>> equal_groups(const std::vector<int>& group) const;
  /// How members of two groups correspond: of a transfer one by one, as its ends differ; of a
  /// collective in any order.
  enum class Members { kOneByOne, kAnyOrder };
  /// The groups equal to `group` that have a member among `near`; `group` is first whether it has
  /// one or not.
  [[nodiscard]] std::vector<std::vector<int>> equal_groups(const std::vector<int>& group,
                                                           const std::vector<int>& near,
                                                           Members members) const;
  /// True if `b` is one of the groups that do what `a` does at the same moment.
  [[nodiscard]] bool are_equal(const std::vector<int>& a, const std::vector<int>& b,
                               Members members) const;
  auto operator<=>(const RankFold&) const = default;

 private:
  /// By axis: how far the group can be moved along it, ascending.
  [[nodiscard]] std::vector<std::vector<int>> shifts_of(const std::vector<int>& group) const;
  /// By axis, at the place shift + extent: whether it is one of shifts_of().
  [[nodiscard]] std::vector<std::vector<bool>> allowed_shifts(
      const std::vector<std::vector<int>>& along) const;
  /// Appends the rank's place along each axis.
  void add_coordinates(int rank, std::vector<int>& coordinates) const;
  [[nodiscard]] bool has_equal_members(const std::vector<int>& group, const std::vector<int>& other,
                                       Members members) const;

  std::vector<int> mesh_;
  std::vector<int> seats_;  ///< by rank
  std::vector<int> representatives_;
  std::vector<int> counts_;  ///< by seat
};

}  // namespace trellis::sim
