#include <fmt/format.h>

#include "device/compiler/graph/graph_text.h"
#include "device/compiler/graph/unsupported_op.h"

namespace trellis::device {
namespace {

std::string call_text(const Graph& graph, const Node& node) {
  std::string arguments = shapes_text(graph, node.inputs);
  if (!node.scalars.empty()) arguments += (arguments.empty() ? "" : ", ") + node.scalars;
  std::string results = shapes_text(graph, node.outputs);
  if (node.outputs.size() != 1) results = "(" + results + ")";
  return fmt::format("aten::{}({}) -> {}", node.op, arguments, results);
}

std::string place_text(const Scope& scope) {
  std::string text;
  const auto add = [&](const std::string& part) {
    text += (text.empty() ? ", called in " : ", ") + part;
  };
  if (!scope.phase.empty()) add("phase " + scope.phase);
  if (scope.microbatch >= 0) add(fmt::format("micro-batch {}", scope.microbatch));
  if (!scope.layer.empty()) add("layer " + scope.layer);
  return text;
}

}  // namespace

UnsupportedOp::UnsupportedOp(const Graph& graph, const Node& node)
    : Error(ExitCode::kConfig,
            fmt::format("the compiler cannot lower {}{}: it has neither a lowering nor an "
                        "estimate. Use other operators there, or add a lowering "
                        "(CONTRIBUTING.md, \"How to add an operator\").",
                        call_text(graph, node), place_text(node.scope))) {}

}  // namespace trellis::device
