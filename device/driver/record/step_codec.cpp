#include "device/driver/record/step_codec.h"

#include <algorithm>
#include <type_traits>

#include "base/byte_codec.h"

namespace trellis::device {
namespace {

template <typename Enum>
void visit_enum(ByteWriter& v, const Enum& value) {
  v(static_cast<std::uint8_t>(value));
}

template <typename Enum>
void visit_enum(ByteReader& v, Enum& value) {
  std::uint8_t number = 0;
  v(number);
  value = static_cast<Enum>(number);
}

template <typename Visitor, typename Numbers>
void visit_numbers(Visitor& v, Numbers& numbers) {
  v.list(numbers, [&](auto& number) { v(number); });
}

template <typename Visitor, typename Scope>
void visit_scope(Visitor& v, Scope& scope) {
  v(scope.phase), v(scope.microbatch), v(scope.layer);
}

template <typename Visitor, typename View>
void visit_view(Visitor& v, View& view) {
  visit_numbers(v, view.sizes);
  visit_numbers(v, view.strides);
  v(view.offset);
  visit_enum(v, view.dtype);
  visit_enum(v, view.host);
}

template <typename Visitor, typename Node>
void visit_node(Visitor& v, Node& node) {
  visit_enum(v, node.kind);
  v(node.op), v(node.scalars);
  visit_numbers(v, node.inputs);
  visit_numbers(v, node.outputs);
  visit_scope(v, node.scope);
  v(node.comm);
}

template <typename Visitor, typename Comm>
void visit_comm(Visitor& v, Comm& comm) {
  visit_enum(v, comm.kind);
  v(comm.axis), v(comm.group_size), v(comm.group_stride), v(comm.peer_offset), v(comm.is_send),
      v(comm.elements);
  visit_enum(v, comm.dtype);
}

/// One description of the format for both directions.
template <typename Visitor, typename Graph>
void visit_graph(Visitor& v, Graph& graph) {
  v(graph.name), v(graph.cut_reason);
  v.list(graph.buffers, [&](auto& buffer) { visit_enum(v, buffer.role), v(buffer.bytes); });
  v.list(graph.values, [&](auto& value) { v(value.buffer), visit_view(v, value.view); });
  v.list(graph.nodes, [&](auto& node) { visit_node(v, node); });
  v.list(graph.comms, [&](auto& comm) { visit_comm(v, comm); });
}

template <typename Visitor, typename Stream>
void visit_stream(Visitor& v, Stream& stream) {
  v.list(stream.instances, [&](auto& instance) {
    v(instance.graph), v(instance.microbatch);
    visit_numbers(v, instance.comms);
    v(instance.memory_before), v(instance.memory_after);
    v.list(instance.counters,
           [&](auto& sample) { v(sample.node), v(sample.name), v(sample.value); });
  });
  v.list(stream.comms, [&](auto& comm) {
    visit_enum(v, comm.kind);
    v(comm.axis);
    visit_numbers(v, comm.ranks);
    v(comm.sequence), v(comm.elements);
    visit_enum(v, comm.dtype);
  });
  v(stream.forgotten);
}

bool are_below(const std::vector<std::uint32_t>& numbers, std::size_t end) {
  return std::ranges::all_of(numbers, [&](std::uint32_t number) { return number < end; });
}

/// True if every index is within the graph's ranges.
bool is_consistent(const Graph& graph) {
  const auto fits = [&](const Node& node) {
    return are_below(node.inputs, graph.values.size()) &&
           are_below(node.outputs, graph.values.size()) &&
           (node.comm == kNoComm || node.comm < graph.comms.size());
  };
  return std::ranges::all_of(graph.nodes, fits) &&
         std::ranges::all_of(
             graph.values, [&](const Value& value) { return value.buffer < graph.buffers.size(); });
}

}  // namespace

std::string encode(const std::vector<Graph>& graphs) {
  ByteWriter bytes;
  bytes.list(graphs, [&](const Graph& graph) { visit_graph(bytes, graph); });
  return bytes.bytes();
}

std::optional<std::vector<Graph>> decode_graphs(std::string_view bytes) {
  ByteReader reader(bytes);
  std::vector<Graph> graphs;
  reader.list(graphs, [&](Graph& graph) { visit_graph(reader, graph); });
  if (!reader.ok() || !reader.at_end() || !std::ranges::all_of(graphs, is_consistent))
    return std::nullopt;
  return graphs;
}

std::string encode(const StepStream& stream) {
  ByteWriter bytes;
  visit_stream(bytes, stream);
  return bytes.bytes();
}

std::optional<StepStream> decode_stream(std::string_view bytes, const std::vector<Graph>& graphs) {
  ByteReader reader(bytes);
  StepStream stream;
  visit_stream(reader, stream);
  const auto fits = [&](const GraphInstance& instance) {
    return instance.graph < graphs.size() && are_below(instance.comms, stream.comms.size()) &&
           instance.comms.size() == graphs[instance.graph].comms.size();
  };
  if (!reader.ok() || !reader.at_end() || !std::ranges::all_of(stream.instances, fits))
    return std::nullopt;
  return stream;
}

}  // namespace trellis::device
