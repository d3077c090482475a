#include "device/compiler/graph.h"

namespace trellis::device {
namespace {

/// Feeds a graph to the hasher with buffers and communications renamed to the order of their first use.
class CanonicalHash {
 public:
  explicit CanonicalHash(const Graph& graph) : graph_(graph), buffers_(graph.buffers.size(), kUnseen), comms_(graph.comms.size(), kUnseen) {}

  ContentHash run() {
    hasher_.text(graph_.name);
    hasher_.value(graph_.nodes.size());
    for (const Node& node : graph_.nodes) feed(node);
    return hasher_.finish();
  }

 private:
  static constexpr std::uint32_t kUnseen = 0xffffffffu;

  void feed(const Node& node) {
    hasher_.value(node.kind);
    hasher_.text(node.op);
    hasher_.text(node.scalars);
    feed_values(node.inputs);
    feed_values(node.outputs);
    hasher_.value(node.comm != kNoComm);
    if (node.comm != kNoComm) feed_comm(node.comm);
  }

  void feed_values(const std::vector<std::uint32_t>& values) {
    hasher_.value(values.size());
    for (std::uint32_t value : values) {
      feed_buffer(graph_.values[value].buffer);
      feed(graph_.values[value].view);
    }
  }

  void feed(const TensorView& view) {
    hasher_.value(view.dtype);
    if (view.host != HostType::kSame) hasher_.value(view.host);
    hasher_.value(view.offset);
    feed(view.sizes);
    feed(view.strides);
  }

  void feed(const std::vector<std::int64_t>& numbers) {
    hasher_.value(numbers.size());
    hasher_.bytes(numbers.data(), numbers.size() * sizeof(std::int64_t));
  }

  /// True, when its content must follow.
  bool feed_id(std::vector<std::uint32_t>& ids, std::uint32_t& next, std::uint32_t id) {
    const bool first = ids[id] == kUnseen;
    if (first) ids[id] = next++;
    hasher_.value(ids[id]);
    return first;
  }

  void feed_buffer(std::uint32_t id) {
    if (!feed_id(buffers_, next_buffer_, id)) return;
    hasher_.value(graph_.buffers[id].role);
    hasher_.value(graph_.buffers[id].bytes);
  }

  void feed_comm(std::uint32_t id) {
    if (!feed_id(comms_, next_comm_, id)) return;
    const CommNode& comm = graph_.comms[id];
    hasher_.value(comm.kind);
    hasher_.text(comm.axis);
    hasher_.value(comm.group_size);
    hasher_.value(comm.group_stride);
    hasher_.value(comm.peer_offset);
    hasher_.value(comm.is_send);
    hasher_.value(comm.elements);
    hasher_.value(comm.dtype);
  }

  const Graph& graph_;
  ContentHasher hasher_;
  std::vector<std::uint32_t> buffers_, comms_;  ///< id → canonical number
  std::uint32_t next_buffer_ = 0, next_comm_ = 0;
};

}  // namespace

ContentHash Graph::hash() const { return CanonicalHash(*this).run(); }

}  // namespace trellis::device
