#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "sim/collectives/algorithm.h"
#include "sim/collectives/layout.h"
#include "sim/collectives/plan.h"

namespace trellis::sim {

/// Sizes from which the algorithms run: the runtime's thresholds, not the fastest choice. Sizes as
/// nccom-test counts them: the gathered size of an all-gather and of a reduce-scatter. The first
/// row that applies is taken. mesh_max and rdh_max are those of a whole instance: a group over some
/// of its chips has that share of them, so that a rank's part is the same.
struct SelectionTable {
  Bytes single_step_max;  ///< up to here, on one chip: single-step mesh
  Bytes mesh_max;         ///< up to here: mesh
  Bytes rdh_max;  ///< up to here: recursive halving and doubling; above: KangaRing for whole chips,
                  ///< ring otherwise
};

/// Throws ConfigError when `wanted` cannot run on this group.
[[nodiscard]] AlgorithmChoice choose_algorithm(CollectiveKind kind, const GroupLayout& layout,
                                               Bytes size, const SelectionTable& table);
/// The same with an algorithm that the user asks for; hierarchical fills in its stages from the
/// table.
[[nodiscard]] AlgorithmChoice choose_algorithm(CollectiveKind kind, const GroupLayout& layout,
                                               Bytes size, const SelectionTable& table,
                                               Algorithm wanted);

/// One row of the table for people.
struct SelectionRow {
  std::string algorithm, sizes, condition;
};
[[nodiscard]] std::vector<SelectionRow> rows(const SelectionTable& table);

}  // namespace trellis::sim
