#include "sim/collectives/outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"
#include "sim/collectives/stage_steps.h"
#include "sim/collectives/step_plans.h"

namespace trellis::sim {
namespace {

using Stages = std::vector<PlanStage>;

/// All-reduce, all-gather and reduce-scatter are made of gathering stages, forwards or backwards.
bool is_staged(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kBarrier;
}

/// Builds the gathering stages of a group; a line's positions are members of the group.
class StageBuilder {
 public:
  explicit StageBuilder(const GroupLayout& layout) : layout_(layout) {}

  [[nodiscard]] Stages gather(const AlgorithmChoice& choice, Line all) const {
    return choice.algorithm == Algorithm::kHierarchical ? hierarchical(choice, std::move(all))
                                                        : inside(choice.algorithm, all);
  }

 private:
  /// Between the nodes first: one line per local index. Then inside every node, where a member
  /// represents its index on all nodes.
  [[nodiscard]] Stages hierarchical(const AlgorithmChoice& choice, Line all) const {
    const int per_node = layout_.members_per_node();
    const int nodes = all.size() / per_node;
    PlanStage across{pattern_across(choice.across), false, false, 1, {}, {}};
    for (int local = 0; local < per_node; ++local)
      across.lines.push_back(take_every(all, local, per_node, nodes));
    Line line;
    for (const Line& one : across.lines) line.owned.push_back(owned_together(one));
    Stages stages;  // of thousands of members: moved, not copied
    stages.push_back(std::move(across));
    std::vector<std::pair<int, Stages>> first;  // of nodes whose members lie alike
    for (int node = 0; node < nodes; ++node) {
      const auto like = std::find_if(first.begin(), first.end(), [&](const auto& known) {
        return lie_alike(known.first, node, per_node);
      });
      if (like != first.end()) {
        add_alike(like->second, (node - like->first) * per_node);
        continue;
      }
      const auto begin = all.members.begin() + std::ptrdiff_t{node} * per_node;
      line.members.assign(begin, begin + per_node);
      first.emplace_back(node, inside(choice.inside, line));
    }
    for (auto& [node, more] : first) merge(stages, std::move(more), 1);
    return stages;
  }

  /// The members of two nodes are on the same chips of them.
  [[nodiscard]] bool lie_alike(int a, int b, int per_node) const {
    for (int local = 0; local < per_node; ++local) {
      const auto x = static_cast<std::size_t>(a * per_node + local);
      const auto y = static_cast<std::size_t>(b * per_node + local);
      const bool same_chip = layout_.chip[x] - layout_.node[x] * layout_.chips_per_node ==
                             layout_.chip[y] - layout_.node[y] * layout_.chips_per_node;
      if (!same_chip || layout_.hypercube[x] != layout_.hypercube[y]) return false;
    }
    return true;
  }

  /// Every line of a node once more, for the members that come `offset` later.
  static void add_alike(Stages& stages, int offset) {
    for (PlanStage& stage : stages) {
      for (Line& line : stage.lines) line.alike.push_back(offset);
    }
  }

  /// Four channels where all chips of an instance take part, else two (SDK nki collectives,
  /// permute_implicit). Who exchanges with all chips at once has all engines.
  [[nodiscard]] Stages inside(Algorithm algorithm, const Line& line) const {
    int chips = line.size() > 0 ? 1 : 0;
    for (int p = 1; p < line.size(); ++p) chips += chip_of(line, p) != chip_of(line, p - 1) ? 1 : 0;
    Stages stages = stages_inside(algorithm, line);
    const bool whole = chips == layout_.chips_per_node;
    for (PlanStage& stage : stages) {
      const bool ring = stage.pattern == Pattern::kRing || stage.pattern == Pattern::kKangaRing;
      stage.channels = !whole ? 2 : ring ? 4 : 0;
    }
    return stages;
  }

  [[nodiscard]] Stages stages_inside(Algorithm algorithm, const Line& line) const {
    switch (algorithm) {
      case Algorithm::kRing: return {along_rings(Pattern::kRing, line)};
      case Algorithm::kKangaRing: return {along_rings(Pattern::kKangaRing, line)};
      case Algorithm::kMesh: return chips_then_cores(Pattern::kDirect, line);
      case Algorithm::kHalvingDoubling: return chips_then_cores(Pattern::kHalvingDoubling, line);
      case Algorithm::kSingleStepMesh:
      case Algorithm::kHierarchical: break;
    }
    TRELLIS_CHECK(false, "this algorithm has no stages inside a node");
    return {};
  }

  /// The line's members in the order of each ring of chips; every ring carries its share of each
  /// piece.
  [[nodiscard]] PlanStage along_rings(Pattern pattern, const Line& line) const {
    PlanStage stage{pattern, false, false, 1, {}, {}};
    const auto orders = ring_orders(line);
    for (std::size_t r = 0; r < orders.size(); ++r) {
      Line& ring = stage.lines.emplace_back();
      for (const int position : orders[r]) {
        ring.members.push_back(line.members[static_cast<std::size_t>(position)]);
        auto& owned = ring.owned.emplace_back();
        for (const Chunk& piece : line.owned[static_cast<std::size_t>(position)])
          owned.push_back(part_of(piece, static_cast<int>(orders.size()), static_cast<int>(r)));
      }
    }
    return stage;
  }

  [[nodiscard]] std::vector<std::vector<int>> ring_orders(const Line& line) const {
    std::map<int, std::vector<int>> by_place;  // chip inside its node → positions
    for (int p = 0; p < line.size(); ++p)
      by_place[chip_of(line, p) % layout_.chips_per_node].push_back(p);
    std::vector<std::vector<int>> orders;
    for (const auto& ring : layout_.chip_rings) {
      auto& order = orders.emplace_back();
      for (const int place : ring)
        order.insert(order.end(), by_place[place].begin(), by_place[place].end());
      if (static_cast<int>(order.size()) != line.size()) return {as_they_come(line)};
    }
    if (orders.empty()) orders.push_back(as_they_come(line));
    return orders;
  }

  [[nodiscard]] static std::vector<int> as_they_come(const Line& line) {
    std::vector<int> order;
    for (int p = 0; p < line.size(); ++p) order.push_back(p);
    return order;
  }

  /// Members of equal index on their chips exchange first, then the members of each chip. Uneven
  /// groups are one line.
  [[nodiscard]] Stages chips_then_cores(Pattern pattern, const Line& line) const {
    const int per_chip = layout_.members_per_chip();
    const int chips = per_chip == 0 ? 0 : line.size() / per_chip;
    if (chips <= 1) return {PlanStage{Pattern::kDirect, false, false, 1, {line}, {}}};
    const bool pipelined = pattern == Pattern::kHalvingDoubling;
    PlanStage between{pattern, false, pipelined, per_chip, {}, {}};
    for (int local = 0; local < per_chip; ++local)
      between.lines.push_back(as_hypercube(every(line, local, per_chip, chips)));
    between.all_ready = pattern == Pattern::kDirect;
    if (per_chip == 1) return {between};
    PlanStage on_chip{Pattern::kDirect, false, pipelined, 1, {}, {}};
    for (int chip = 0; chip < chips; ++chip) {
      Line& cores = on_chip.lines.emplace_back();
      for (int local = 0; local < per_chip; ++local) {
        cores.members.push_back(line.members[static_cast<std::size_t>(chip * per_chip + local)]);
        cores.owned.push_back(owned_together(between.lines[static_cast<std::size_t>(local)]));
      }
    }
    return {between, on_chip};
  }

  [[nodiscard]] Line as_hypercube(const Line& line) const {
    std::vector<int> order = as_they_come(line);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return corner(line, a) < corner(line, b); });
    Line sorted;
    for (const int p : order) {
      sorted.members.push_back(line.members[static_cast<std::size_t>(p)]);
      sorted.owned.push_back(line.owned[static_cast<std::size_t>(p)]);
    }
    return sorted;
  }

  [[nodiscard]] int chip_of(const Line& line, int position) const {
    return layout_.chip[static_cast<std::size_t>(line.members[static_cast<std::size_t>(position)])];
  }
  [[nodiscard]] int corner(const Line& line, int position) const {
    return layout_
        .hypercube[static_cast<std::size_t>(line.members[static_cast<std::size_t>(position)])];
  }

  /// Positions first, first + step, …
  [[nodiscard]] static Line every(const Line& line, int first, int step, int count) {
    Line result;
    for (int i = 0; i < count; ++i) {
      const auto position = static_cast<std::size_t>(first + i * step);
      result.members.push_back(line.members[position]);
      result.owned.push_back(line.owned[position]);
    }
    return result;
  }

  /// The same; `line` keeps its members, but no longer what these own.
  [[nodiscard]] static Line take_every(Line& line, int first, int step, int count) {
    Line result;
    result.members.reserve(static_cast<std::size_t>(count));
    result.owned.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      const auto position = static_cast<std::size_t>(first + i * step);
      result.members.push_back(line.members[position]);
      result.owned.push_back(std::move(line.owned[position]));
    }
    return result;
  }

  [[nodiscard]] static std::vector<Chunk> owned_together(const Line& line) {
    std::vector<Chunk> all;
    all.reserve(line.owned.size());
    for (const auto& pieces : line.owned) all.insert(all.end(), pieces.begin(), pieces.end());
    return all;
  }

  [[nodiscard]] static Pattern pattern_across(Algorithm algorithm) {
    switch (algorithm) {
      case Algorithm::kMesh: return Pattern::kDirect;
      case Algorithm::kHalvingDoubling: return Pattern::kHalvingDoubling;
      default: return Pattern::kRing;
    }
  }

  /// Adds the lines of another node's stages, which run at the same time.
  static void merge(Stages& stages, Stages more, std::size_t at) {
    for (std::size_t s = 0; s < more.size(); ++s) {
      if (at + s == stages.size()) {
        stages.push_back(std::move(more[s]));
      } else {
        auto& lines = stages[at + s].lines;
        lines.insert(lines.end(), more[s].lines.begin(), more[s].lines.end());
      }
    }
  }

  const GroupLayout& layout_;
};

Line all_members(int members, std::int64_t elements) {
  Line line;
  line.members.reserve(static_cast<std::size_t>(members));
  line.owned.reserve(static_cast<std::size_t>(members));
  for (int m = 0; m < members; ++m) {
    line.members.push_back(m);
    line.owned.emplace_back(1, chunk_range(elements, members, m));
  }
  return line;
}

std::string why_no_kanga_ring(const GroupLayout& layout) {
  const int per_chip = layout.members_per_chip();
  if (per_chip == 0 || per_chip % 2 != 0 || per_chip != layout.cores_per_chip) {
    return fmt::format(
        "KangaRing needs every core of each chip in the group ({} per chip): add them or use ring",
        layout.cores_per_chip);
  }
  return layout.members() > per_chip
             ? ""
             : "KangaRing goes from chip to chip, the group has one: use mesh or ring";
}

std::string why_no_halving_doubling(const GroupLayout& layout) {
  const int per_chip = layout.members_per_chip();
  if (per_chip == 0)
    return "recursive halving and doubling needs equally many members on each chip: use ring";
  const int chips = layout.members() / per_chip;
  if (!std::has_single_bit(static_cast<unsigned>(chips)))
    return fmt::format(
        "recursive halving and doubling needs a power of two of chips, the group has {}: use ring",
        chips);
  return "";
}

}  // namespace

std::string why_unavailable(Algorithm algorithm, CollectiveKind kind, const GroupLayout& layout) {
  const bool staged = is_staged(kind);
  const auto only = [&](const char* what) {
    return fmt::format("{} is there for {}, not for {}: use ring or mesh", name(algorithm), what,
                       name(kind));
  };
  switch (algorithm) {
    case Algorithm::kRing: return "";
    case Algorithm::kMesh:
      return kind == CollectiveKind::kPermute || kind == CollectiveKind::kSendRecv
                 ? fmt::format("{} has no mesh form: use ring", name(kind))
                 : "";
    case Algorithm::kSingleStepMesh:
      return kind == CollectiveKind::kAllReduce ? "" : only("all_reduce");
    case Algorithm::kKangaRing:
      return staged ? why_no_kanga_ring(layout) : only("all_reduce, all_gather and reduce_scatter");
    case Algorithm::kHalvingDoubling:
      return staged ? why_no_halving_doubling(layout)
                    : only("all_reduce, all_gather and reduce_scatter");
    case Algorithm::kHierarchical: break;
  }
  if (!staged) return only("all_reduce, all_gather and reduce_scatter");
  if (layout.nodes() < 2)
    return "hierarchical needs members on several nodes, the group lies on one: use ring or mesh";
  if (layout.members_per_node() < 2)
    return "hierarchical needs the same number of members, at least two, on every node: use ring";
  return "";
}

PlanOutline make_outline(CollectiveKind kind, const AlgorithmChoice& choice,
                         const GroupLayout& layout, std::int64_t elements) {
  const int members = layout.members();
  TRELLIS_CHECK(members >= 1 && elements >= 0,
                "a collective has at least one member and no negative size");
  PlanOutline outline{kind, members, kind == CollectiveKind::kBarrier ? 1 : elements, false, {}};
  if (members == 1) return outline;
  if (!is_staged(kind) || choice.algorithm == Algorithm::kSingleStepMesh) {
    outline.second_buffer = kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kPermute ||
                            choice.algorithm == Algorithm::kSingleStepMesh;
    outline.stages.push_back({Pattern::kSteps,
                              false,
                              false,
                              1,
                              {},
                              steps_of(kind, choice.algorithm, members, elements)});
    return outline;
  }
  Stages gather = StageBuilder(layout).gather(choice, all_members(members, outline.elements));
  if (kind == CollectiveKind::kAllGather) {
    outline.stages = std::move(gather);
    return outline;
  }
  Stages after;  // the reduction is the way back
  if (kind != CollectiveKind::kReduceScatter) after = gather;
  outline.stages = std::move(gather);
  std::reverse(outline.stages.begin(), outline.stages.end());
  for (PlanStage& stage : outline.stages) stage.reduce = true;
  std::move(after.begin(), after.end(), std::back_inserter(outline.stages));
  return outline;
}

CommPlan ring_plan(CollectiveKind kind, int members, std::int64_t elements) {
  return expand(make_outline(kind, {Algorithm::kRing}, flat_layout(members), elements));
}

GroupLayout inside_one_node(const GroupLayout& layout) {
  GroupLayout inside = layout;
  const auto count = static_cast<std::size_t>(layout.members_per_node());
  inside.node.resize(count);
  inside.chip.resize(count);
  inside.hypercube.resize(count);
  return inside;
}

}  // namespace trellis::sim
