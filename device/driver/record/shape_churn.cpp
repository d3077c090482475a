#include "device/driver/record/shape_churn.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trellis::device {
namespace {

/// A program with more kinds of graphs never does the same again: it is not watched any further.
constexpr std::size_t kMostFamilies = 256;

ContentHash operations_of(const Graph& graph) {
  ContentHasher hasher;
  hasher.text(graph.name);
  for (const Node& node : graph.nodes) {
    hasher.text(node.op);
    hasher.value(node.inputs.size());
  }
  return hasher.finish();
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

void ShapeChurn::add(const Graph& graph) {
  if (families_.size() >= kMostFamilies) return;
  Family& family = families_[operations_of(graph)];
  std::vector<Shape> shapes;
  std::string difference;
  for (const Node& node : graph.nodes) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      shapes.push_back(graph.values[node.inputs[i]].view.sizes);
      const std::size_t at = shapes.size() - 1;
      if (family.graphs == 0 || !difference.empty() || shapes[at] == family.shapes[at]) continue;
      difference = fmt::format("tensor {} of \"{}\"{} has shape {}, {} before", i, node.op,
                               node.scope.layer.empty() ? "" : " in " + node.scope.layer,
                               text_of(shapes[at]), text_of(family.shapes[at]));
    }
  }
  ++family.graphs;
  family.shapes = std::move(shapes);
  if (difference.empty()) return;
  ++graphs_;
  is_fresh_ = true;
  last_ =
      fmt::format("the newest is number {} of \"{}\": {}", family.graphs, graph.name, difference);
}

std::string ShapeChurn::end_step() {
  if (!std::exchange(is_fresh_, false) || ++steps_ < warn_at_) return "";
  warn_at_ *= 2;
  return fmt::format(
      "{} steps have brought {} graphs that differ from earlier ones only in shapes, and the "
      "device compiles each, for minutes: {}: pad inputs to a few lengths, and give a dropless "
      "mixture a capacity_factor",
      steps_, graphs_, last_);
}

}  // namespace trellis::device
