#include "sim/collectives/selection.h"

#include <fmt/format.h>

#include "base/error.h"
#include "sim/collectives/outline.h"

namespace trellis::sim {
namespace {

bool available(Algorithm algorithm, CollectiveKind kind, const GroupLayout& layout) {
  return why_unavailable(algorithm, kind, layout).empty();
}

/// The thresholds of a group over some of the chips of an instance.
SelectionTable for_group(SelectionTable table, const GroupLayout& layout) {
  const int chips = layout.chips();
  if (chips <= 1 || chips >= layout.chips_per_node) return table;
  table.mesh_max = Bytes(table.mesh_max.value * chips / layout.chips_per_node);
  table.rdh_max = Bytes(table.rdh_max.value * chips / layout.chips_per_node);
  return table;
}

Algorithm inside_choice(CollectiveKind kind, const GroupLayout& layout, Bytes size,
                        const SelectionTable& whole) {
  const SelectionTable table = for_group(whole, layout);
  const bool one_chip = layout.members_per_chip() == layout.members();
  if (one_chip && size <= table.single_step_max &&
      available(Algorithm::kSingleStepMesh, kind, layout))
    return Algorithm::kSingleStepMesh;
  if (kind == CollectiveKind::kAllToAll)
    return Algorithm::kMesh;  // pair by pair moves the same bytes and leaves links idle
  if (size <= table.mesh_max && available(Algorithm::kMesh, kind, layout)) return Algorithm::kMesh;
  if (size <= table.rdh_max && available(Algorithm::kHalvingDoubling, kind, layout))
    return one_chip ? Algorithm::kMesh : Algorithm::kHalvingDoubling;
  // Over one cycle a ring's channels carry less than those of pairs.
  const bool two_cycles = layout.chips() == layout.chips_per_node;
  if (size > table.rdh_max && two_cycles && available(Algorithm::kKangaRing, kind, layout))
    return Algorithm::kKangaRing;
  return Algorithm::kRing;
}

/// The nodes as one line: a hypercube when they are a power of two.
Algorithm across_choice(const GroupLayout& layout, Bytes size, const SelectionTable& table) {
  if (size <= table.mesh_max) return Algorithm::kMesh;
  const bool hypercube = available(Algorithm::kHalvingDoubling, CollectiveKind::kAllReduce,
                                   flat_layout(layout.nodes()));
  return size <= table.rdh_max && hypercube ? Algorithm::kHalvingDoubling : Algorithm::kRing;
}

AlgorithmChoice hierarchical(CollectiveKind kind, const GroupLayout& layout, Bytes size,
                             const SelectionTable& table) {
  SelectionTable inside = table;
  inside.single_step_max = Bytes(-1);  // it has no stages
  return {Algorithm::kHierarchical, inside_choice(kind, inside_one_node(layout), size, inside),
          across_choice(layout, size, table)};
}

std::string size_text(Bytes size) {
  if (size.value > 0 && size.value % (1 << 20) == 0) return fmt::format("{} MiB", size.value >> 20);
  return size.value >= 1'000'000 ? fmt::format("{:g} MB", static_cast<double>(size.value) * 1e-6)
                                 : fmt::format("{} B", size.value);
}

}  // namespace

AlgorithmChoice choose_algorithm(CollectiveKind kind, const GroupLayout& layout, Bytes size,
                                 const SelectionTable& table) {
  if (available(Algorithm::kHierarchical, kind, layout))
    return hierarchical(kind, layout, size, table);
  if (layout.nodes() > 1)
    return {available(Algorithm::kMesh, kind, layout) &&
                    (size <= table.mesh_max || kind == CollectiveKind::kAllToAll)
                ? Algorithm::kMesh
                : Algorithm::kRing};
  return {inside_choice(kind, layout, size, table)};
}

AlgorithmChoice choose_algorithm(CollectiveKind kind, const GroupLayout& layout, Bytes size,
                                 const SelectionTable& table, Algorithm wanted) {
  const std::string reason = why_unavailable(wanted, kind, layout);
  if (!reason.empty()) throw ConfigError(reason);
  return wanted == Algorithm::kHierarchical ? hierarchical(kind, layout, size, table)
                                            : AlgorithmChoice{wanted};
}

std::vector<SelectionRow> rows(const SelectionTable& table) {
  const std::string mesh = size_text(table.mesh_max);
  const std::string rdh = size_text(table.rdh_max);
  return {
      {"hierarchical", "any",
       "several nodes with equally many members: the rows below inside a node; across: mesh, rdh "
       "(a power of two of nodes) or ring"},
      {"single_step_mesh", "up to " + size_text(table.single_step_max), "all_reduce on one chip"},
      {"mesh", "up to " + mesh,
       "any group; all_to_all at any size; over some of an instance's chips: that share of this "
       "size"},
      {"rdh", "up to " + rdh,
       "a power of two of chips, equally many members on each; on one chip: mesh; over some of an "
       "instance's chips: that share of this size"},
      {"kangaring", "above " + rdh, "all chips of an instance, whole"},
      {"ring", "any", "everything else"}};
}

}  // namespace trellis::sim
