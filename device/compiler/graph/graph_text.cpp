#include "device/compiler/graph/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/escape.h"

namespace trellis::device {
namespace {

std::string_view role_name(BufferRole role) {
  switch (role) {
    case BufferRole::kExternal: return "external";
    case BufferRole::kTemporary: return "temporary";
    case BufferRole::kOutput: return "output";
  }
  return "unknown";
}

bool is_contiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (std::size_t d = view.sizes.size(); d-- > 0; expected *= view.sizes[d]) {
    if (view.sizes[d] != 1 && view.strides[d] != expected) return false;
  }
  return true;
}

/// "b3 bf16[2, 128]", with strides and offset where they are not what a fresh tensor has.
std::string value_text(const Value& value) {
  std::string text = fmt::format("b{} {}", value.buffer, shape_text(value.view));
  if (!is_contiguous(value.view))
    text += fmt::format(" strides [{}]", fmt::join(value.view.strides, ", "));
  if (value.view.offset != 0) text += fmt::format(" + {}", value.view.offset);
  return text;
}

std::string values_text(const Graph& graph, const std::vector<std::uint32_t>& values) {
  std::vector<std::string> texts;
  for (std::uint32_t value : values) texts.push_back(value_text(graph.values[value]));
  return fmt::format("({})", fmt::join(texts, ", "));
}

std::string comm_text(const CommNode& comm) {
  std::string text = fmt::format("{} on {}, {} × {}", sim::name(comm.kind), comm.axis,
                                 comm.elements, name(comm.dtype));
  if (comm.kind == sim::CollectiveKind::kSendRecv)
    return text + fmt::format(", {} peer {:+}", comm.is_send ? "send to" : "receive from",
                              comm.peer_offset);
  return text + fmt::format(", {} members, stride {}", comm.group_size, comm.group_stride);
}

std::string scope_text(const Scope& scope) {
  std::vector<std::string> parts;
  if (!scope.phase.empty()) parts.push_back(scope.phase);
  if (scope.microbatch >= 0) parts.push_back(fmt::format("micro-batch {}", scope.microbatch));
  if (!scope.layer.empty()) parts.push_back(scope.layer);
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string node_line(const Graph& graph, const Node& node) {
  std::string text;
  switch (node.kind) {
    case Node::Kind::kOp: text = node.op; break;
    case Node::Kind::kCommStart: text = fmt::format("start c{}", node.comm); break;
    case Node::Kind::kCommWait: text = fmt::format("wait c{}", node.comm); break;
  }
  if (!node.inputs.empty() || !node.outputs.empty())
    text +=
        fmt::format(" {} -> {}", values_text(graph, node.inputs), values_text(graph, node.outputs));
  if (!node.scalars.empty()) text += fmt::format(" {{{}}}", node.scalars);
  if (const std::string scope = scope_text(node.scope); !scope.empty())
    text += fmt::format("  @ {}", scope);
  return text;
}

/// Who wrote a buffer last, as nodes are passed in order.
class DotWriter {
 public:
  explicit DotWriter(const Graph& graph)
      : graph_(graph), writer_(graph.buffers.size()), start_(graph.comms.size()) {}

  std::string run() {
    text_ =
        fmt::format("digraph {} {{\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n",
                    dot_text(graph_.name));
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) add(n);
    for (std::size_t b = 0; b < graph_.buffers.size(); ++b) add_result(b);
    return text_ + "}\n";
  }

 private:
  void add(std::size_t n) {
    const Node& node = graph_.nodes[n];
    const std::string id = fmt::format("n{}", n);
    const bool comm = node.kind != Node::Kind::kOp;
    std::string label =
        comm ? fmt::format("{} {}", node.kind == Node::Kind::kCommStart ? "start" : "wait",
                           comm_text(graph_.comms[node.comm]))
             : node.op;
    text_ += fmt::format("  {} [label={}{}];\n", id, dot_text(label),
                         comm ? ", shape=hexagon, style=filled, fillcolor=lightyellow" : "");
    for (std::uint32_t value : node.inputs) edge(graph_.values[value], id);
    for (std::uint32_t value : node.outputs) writer_[graph_.values[value].buffer] = id;
    if (node.kind == Node::Kind::kCommStart) start_[node.comm] = id;
    if (node.kind == Node::Kind::kCommWait && !start_[node.comm].empty())
      text_ += fmt::format("  {} -> {} [style=dashed];\n", start_[node.comm], id);
  }

  void edge(const Value& value, const std::string& to) {
    std::string& from = writer_[value.buffer];
    if (from.empty()) {
      from = fmt::format("b{}", value.buffer);
      text_ += buffer_node(value.buffer, from);
    }
    text_ += fmt::format("  {} -> {} [label={}];\n", from, to, dot_text(shape_text(value.view)));
  }

  std::string buffer_node(std::size_t buffer, const std::string& id) const {
    const GraphBuffer& b = graph_.buffers[buffer];
    return fmt::format(
        "  {} [shape=ellipse, label={}];\n", id,
        dot_text(fmt::format("b{} {}, {} bytes", buffer, role_name(b.role), b.bytes)));
  }

  /// Adds a buffer that the graph wrote and that survives it.
  void add_result(std::size_t buffer) {
    const std::string& from = writer_[buffer];
    if (graph_.buffers[buffer].role == BufferRole::kTemporary || !from.starts_with('n')) return;
    const std::string id = fmt::format("r{}", buffer);
    text_ += buffer_node(buffer, id);
    text_ += fmt::format("  {} -> {};\n", from, id);
  }

  const Graph& graph_;
  std::string text_;
  std::vector<std::string> writer_;  ///< per buffer: the dot node that holds its present content
  std::vector<std::string> start_;   ///< per communication
};

}  // namespace

std::string shape_text(const TensorView& view) {
  return fmt::format("{}[{}]", name(view.dtype), fmt::join(view.sizes, ", "));
}

std::string shapes_text(const Graph& graph, const std::vector<std::uint32_t>& values) {
  std::vector<std::string> texts;
  for (std::uint32_t value : values) texts.push_back(shape_text(graph.values[value].view));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string print(const Graph& graph) {
  std::string text =
      fmt::format("graph {}: {} buffers, {} nodes, {} communications{}\n", graph.name,
                  graph.buffers.size(), graph.nodes.size(), graph.comms.size(),
                  graph.cut_reason.empty() ? "" : fmt::format(", ended by {}", graph.cut_reason));
  for (std::size_t b = 0; b < graph.buffers.size(); ++b)
    text += fmt::format("  b{} {} {} bytes\n", b, role_name(graph.buffers[b].role),
                        graph.buffers[b].bytes);
  for (std::size_t c = 0; c < graph.comms.size(); ++c)
    text += fmt::format("  c{} {}\n", c, comm_text(graph.comms[c]));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    text += fmt::format("  n{} {}\n", n, node_line(graph, graph.nodes[n]));
  return text;
}

std::string to_dot(const Graph& graph) { return DotWriter(graph).run(); }

}  // namespace trellis::device
