#include "device/compiler/graph/graph.h"

namespace trellis::device {
namespace {

/// The bytes that ContentHasher's methods of these names would be fed one by one; one long text is
/// hashed many times faster.
class Content {
 public:
  template <typename T>
  void value(T v) {
    bytes(&v, sizeof v);
  }
  void text(const std::string& text) {
    value(static_cast<std::uint64_t>(text.size()));
    content_ += text;
  }
  void bytes(const void* data, std::size_t size) {
    content_.append(static_cast<const char*>(data), size);
  }
  [[nodiscard]] ContentHash hash() const {
    ContentHasher h;
    h.bytes(content_.data(), content_.size());
    return h.finish();
  }

 private:
  std::string content_;
};

/// Writes a graph down with buffers and communications renamed to the order of their first use.
class CanonicalHash {
 public:
  explicit CanonicalHash(const Graph& graph)
      : graph_(graph),
        buffers_(graph.buffers.size(), kUnseen),
        comms_(graph.comms.size(), kUnseen) {}

  ContentHash run() {
    content_.text(graph_.name);
    content_.value(graph_.nodes.size());
    for (const Node& node : graph_.nodes) feed(node);
    return content_.hash();
  }

 private:
  static constexpr std::uint32_t kUnseen = 0xffffffffu;

  void feed(const Node& node) {
    content_.value(node.kind);
    content_.text(node.op);
    content_.text(node.scalars);
    feed_values(node.inputs);
    feed_values(node.outputs);
    content_.value(node.comm != kNoComm);
    if (node.comm != kNoComm) feed_comm(node.comm);
  }

  void feed_values(const std::vector<std::uint32_t>& values) {
    content_.value(values.size());
    for (std::uint32_t value : values) {
      feed_buffer(graph_.values[value].buffer);
      feed(graph_.values[value].view);
    }
  }

  void feed(const TensorView& view) {
    content_.value(view.dtype);
    if (view.host != HostType::kSame) content_.value(view.host);
    content_.value(view.offset);
    feed(view.sizes);
    feed(view.strides);
  }

  void feed(const std::vector<std::int64_t>& numbers) {
    content_.value(numbers.size());
    content_.bytes(numbers.data(), numbers.size() * sizeof(std::int64_t));
  }

  /// True, when its content must follow.
  bool feed_id(std::vector<std::uint32_t>& ids, std::uint32_t& next, std::uint32_t id) {
    const bool first = ids[id] == kUnseen;
    if (first) ids[id] = next++;
    content_.value(ids[id]);
    return first;
  }

  void feed_buffer(std::uint32_t id) {
    if (!feed_id(buffers_, next_buffer_, id)) return;
    content_.value(graph_.buffers[id].role);
    content_.value(graph_.buffers[id].bytes);
  }

  void feed_comm(std::uint32_t id) {
    if (!feed_id(comms_, next_comm_, id)) return;
    const CommNode& comm = graph_.comms[id];
    content_.value(comm.kind);
    content_.text(comm.axis);
    content_.value(comm.group_size);
    content_.value(comm.group_stride);
    content_.value(comm.peer_offset);
    content_.value(comm.is_send);
    content_.value(comm.elements);
    content_.value(comm.dtype);
  }

  const Graph& graph_;
  Content content_;
  std::vector<std::uint32_t> buffers_, comms_;  ///< id → canonical number
  std::uint32_t next_buffer_ = 0, next_comm_ = 0;
};

}  // namespace

ContentHash Graph::hash() const { return CanonicalHash(*this).run(); }

}  // namespace trellis::device
