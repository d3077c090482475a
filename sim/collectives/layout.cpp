#include "sim/collectives/layout.h"

#include <numeric>

namespace trellis::sim {
namespace {

/// Length of the runs of equal numbers when all are equally long; 0 otherwise.
int even_run(const std::vector<int>& places) {
  std::size_t run = 0;
  for (std::size_t begin = 0; begin < places.size();) {
    std::size_t end = begin;
    while (end < places.size() && places[end] == places[begin]) ++end;
    if (run != 0 && end - begin != run) return 0;
    run = end - begin;
    begin = end;
  }
  return static_cast<int>(run);
}

}  // namespace

int GroupLayout::nodes() const {
  int count = node.empty() ? 0 : 1;
  for (std::size_t m = 1; m < node.size(); ++m) count += node[m] != node[m - 1] ? 1 : 0;
  return count;
}

int GroupLayout::chips() const {
  int count = chip.empty() ? 0 : 1;
  for (std::size_t m = 1; m < chip.size(); ++m) count += chip[m] != chip[m - 1] ? 1 : 0;
  return count;
}

int GroupLayout::members_per_node() const { return even_run(node); }
int GroupLayout::members_per_chip() const { return even_run(chip); }

GroupLayout flat_layout(int members) {
  GroupLayout layout;
  layout.node.assign(static_cast<std::size_t>(members), 0);
  layout.chip.resize(static_cast<std::size_t>(members));
  std::iota(layout.chip.begin(), layout.chip.end(), 0);
  layout.hypercube = layout.chip;
  layout.chips_per_node = members;
  return layout;
}

}  // namespace trellis::sim
