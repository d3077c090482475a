#include "device/compiler/graph/pieces.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace trellis::device {

namespace {

/// Bytes up to the end of what a view of the host reaches.
std::int64_t end_of(const TensorView& view) {
  std::int64_t last = view.offset;
  for (std::size_t d = 0; d < view.sizes.size(); ++d)
    last += view.strides[d] * std::max<std::int64_t>(view.sizes[d] - 1, 0);
  return (last + 1) * sim::isa::size_bytes(view.dtype);
}

/// Where in a large buffer (gradients and weights of many layers) a piece works does not change
/// what it costs, only where its views are relative to each other: a buffer that is seen as one
/// type begins at the first of them, so that equal layers are equal pieces.
void move_to_origin(Graph& piece) {
  struct Seen {
    std::optional<DType> type;
    bool movable = true;
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
  };
  std::vector<Seen> seen(piece.buffers.size());
  for (const auto& [buffer, view] : piece.values) {
    Seen& s = seen[buffer];
    s.movable = s.movable && s.type.value_or(view.dtype) == view.dtype;
    s.type = view.dtype;
    s.first = std::min(s.first, view.offset);
  }
  for (std::size_t b = 0; b < seen.size(); ++b) {
    if (seen[b].movable) piece.buffers[b].bytes = 0;
  }
  for (auto& [buffer, view] : piece.values) {
    if (!seen[buffer].movable) continue;
    view.offset -= seen[buffer].first;
    std::int64_t& bytes = piece.buffers[buffer].bytes;
    bytes = std::max(bytes, end_of(view));
  }
}

}  // namespace

std::string_view numbered_layer(std::string_view path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view word = path.substr(begin, end - begin);
    if (!word.empty() &&
        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

PieceCutter::PieceCutter(const Graph& graph) : graph_(graph) {
  find_uses();
  find_pieces();
}

void PieceCutter::find_uses() {
  uses_.resize(graph_.buffers.size());
  for (std::uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    for (const auto* list : {&graph_.nodes[n].inputs, &graph_.nodes[n].outputs}) {
      for (const std::uint32_t v : *list) {
        Use& use = uses_[graph_.values[v].buffer];
        use.first = std::min(use.first, n);
        use.last = n;
      }
    }
  }
}

void PieceCutter::find_pieces() {
  std::string_view open_layer;
  for (std::uint32_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    const std::string_view layer = numbered_layer(node.scope.layer);
    const bool joins = node.kind == Node::Kind::kOp && !pieces_.empty() &&
                       !is_communication(pieces_.back()) && layer == open_layer;
    if (joins) {
      pieces_.back().end = n + 1;
    } else {
      pieces_.push_back({n, n + 1});
      open_layer = layer;
    }
  }
}

bool PieceCutter::is_communication(const Piece& piece) const {
  return graph_.nodes[piece.first].kind != Node::Kind::kOp;
}

BufferRole PieceCutter::role(std::uint32_t buffer, const Piece& piece) const {
  const BufferRole role = graph_.buffers[buffer].role;
  if (role == BufferRole::kExternal || uses_[buffer].first < piece.first)
    return BufferRole::kExternal;
  return role == BufferRole::kOutput || uses_[buffer].last >= piece.end ? BufferRole::kOutput
                                                                        : BufferRole::kTemporary;
}

Graph PieceCutter::extract(const Piece& piece) const {
  constexpr std::uint32_t kUnseen = 0xffffffffu;
  Graph out;
  out.name = graph_.name;
  std::vector<std::uint32_t> buffers(graph_.buffers.size(), kUnseen),
      values(graph_.values.size(), kUnseen);
  const auto rename = [&](std::uint32_t& value) {
    std::uint32_t& v = values[value];
    if (v == kUnseen) {
      const Value& whole = graph_.values[value];
      std::uint32_t& b = buffers[whole.buffer];
      if (b == kUnseen) {
        b = static_cast<std::uint32_t>(out.buffers.size());
        out.buffers.push_back({role(whole.buffer, piece), graph_.buffers[whole.buffer].bytes});
      }
      v = static_cast<std::uint32_t>(out.values.size());
      out.values.push_back({b, whole.view});
    }
    value = v;
  };
  out.nodes.assign(graph_.nodes.begin() + piece.first, graph_.nodes.begin() + piece.end);
  for (Node& node : out.nodes) {
    for (std::uint32_t& v : node.inputs) rename(v);
    for (std::uint32_t& v : node.outputs) rename(v);
  }
  move_to_origin(out);
  return out;
}

}  // namespace trellis::device
