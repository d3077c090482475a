#include "device/driver/record/operator_uses.h"

#include <set>

namespace trellis::device {
namespace {

using TypeOf = OperatorUses::TypeOf;

std::string place(const Scope& scope) {
  if (scope.layer.empty()) return scope.phase;
  return scope.phase.empty() ? scope.layer : scope.phase + " " + scope.layer;
}

void add_type(std::set<TypeOf>& types, const TensorView& view) {
  const std::size_t dims = view.sizes.size() - (view.host == HostType::kComplex ? 1 : 0);
  if (dims > 0) types.insert({view.dtype, view.host});
}

}  // namespace

void OperatorUses::add(const Graph& graph, std::int64_t times) {
  if (times == 0) return;
  for (const Node& node : graph.nodes) {
    if (node.kind == Node::Kind::kCommWait) continue;
    std::set<TypeOf> types;
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (const std::uint32_t v : *values) add_type(types, graph.values[v].view);
    }
    for (const TypeOf& type : types) {
      Use& use = uses_[{node.op, type}];
      use.count += times;
      use.places[place(node.scope)] += times;
    }
  }
}

void OperatorUses::add(const OperatorUses& other) {
  for (const auto& [key, use] : other.uses_) add(key.first, key.second, use);
}

void OperatorUses::add(const std::string& op, TypeOf type, const Use& use) {
  Use& mine = uses_[{op, type}];
  mine.count += use.count;
  for (const auto& [place, count] : use.places) mine.places[place] += count;
}

}  // namespace trellis::device
