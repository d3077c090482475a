#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "device/driver/record/rank_recorder_impl.h"

namespace trellis::device {

namespace {

std::string op_name(const std::string& schema) {
  constexpr std::string_view kAten = "aten::";
  return schema.starts_with(kAten) ? schema.substr(kAten.size()) : schema;
}

std::int32_t position(const std::vector<int>& ranks, int rank) {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  TRELLIS_CHECK(it != ranks.end(), "rank is no member of its communication");
  return static_cast<std::int32_t>(it - ranks.begin());
}

/// The group without its rank numbers: what equal ranks have in common.
CommNode comm_node(const CommRequest& request, int rank) {
  CommNode node;
  node.kind = request.kind;
  node.axis = request.axis;
  node.elements = request.elements;
  node.dtype = request.dtype;
  if (request.kind == sim::CollectiveKind::kSendRecv) {
    node.is_send = request.ranks[0] == rank;
    node.group_size = 2;
    node.peer_offset = node.is_send ? request.ranks[1] - rank : request.ranks[0] - rank;
  } else {
    node.group_size = static_cast<std::int32_t>(request.ranks.size());
    node.group_stride = request.ranks.size() > 1 ? request.ranks[1] - request.ranks[0] : 1;
    (void)position(request.ranks, rank);
  }
  return node;
}

class Builder {
 public:
  Builder(const RankRecorder::Impl& stream, const InternTable& interned, int rank)
      : stream_(stream), interned_(interned), rank_(rank) {}

  Graph build(std::string_view reason, std::vector<std::uint32_t>& comms) {
    graph_.cut_reason = reason;
    for (const OpRecord& op : stream_.ops) add(op);
    graph_.name = graph_.nodes.empty() || graph_.nodes.front().scope.phase.empty()
                      ? "other"
                      : graph_.nodes.front().scope.phase;
    comms = std::move(comms_);
    return std::move(graph_);
  }

 private:
  void add(const OpRecord& op) {
    Node node;
    const std::string& schema = interned_.text(op.schema);
    node.scope = interned_.scope(op.scope);
    for (std::uint32_t i = 0; i < op.num_inputs; ++i)
      node.inputs.push_back(value(op.first_operand + i));
    for (std::uint32_t i = 0; i < op.num_outputs; ++i)
      node.outputs.push_back(value(op.first_operand + op.num_inputs + i));
    if (schema == kCommStartSchema || schema == kCommWaitSchema) {
      node.kind = schema == kCommStartSchema ? Node::Kind::kCommStart : Node::Kind::kCommWait;
      node.comm = comm(interned_.text(op.scalars));
      node.op = sim::name(graph_.comms[node.comm].kind);
    } else {
      node.op = op_name(schema);
      node.scalars = interned_.text(op.scalars);
    }
    graph_.nodes.push_back(std::move(node));
  }

  std::uint32_t comm(const std::string& handle) {
    std::uint32_t request = 0;
    std::from_chars(handle.data(), handle.data() + handle.size(), request);
    const auto it = std::find(comms_.begin(), comms_.end(), request);
    if (it != comms_.end()) return static_cast<std::uint32_t>(it - comms_.begin());
    comms_.push_back(request);
    graph_.comms.push_back(comm_node(stream_.step.comms[request], rank_));
    return static_cast<std::uint32_t>(comms_.size() - 1);
  }

  std::uint32_t value(std::size_t at) {
    const Operand operand = stream_.operands[at];
    const std::uint32_t buffer =
        this->buffer(operand.buffer, stream_.bytes_of(static_cast<std::uint32_t>(at), interned_));
    const std::uint64_t key = (std::uint64_t{buffer} << 24) | operand.view;
    const auto [it, fresh] =
        values_.try_emplace(key, static_cast<std::uint32_t>(graph_.values.size()));
    if (fresh)
      graph_.values.push_back({buffer, interned_.view(static_cast<std::uint32_t>(operand.view))});
    return it->second;
  }

  std::uint32_t buffer(std::uint64_t id, std::int64_t bytes) {
    const auto [it, fresh] =
        buffers_.try_emplace(id, static_cast<std::uint32_t>(graph_.buffers.size()));
    if (fresh) {
      const BufferRole role = id < stream_.first_new_buffer ? BufferRole::kExternal
                              : stream_.is_released(id)     ? BufferRole::kTemporary
                                                            : BufferRole::kOutput;
      graph_.buffers.push_back({role, bytes});
    }
    // A buffer may be resized while the graph runs: it needs its largest size.
    graph_.buffers[it->second].bytes = std::max(graph_.buffers[it->second].bytes, bytes);
    return it->second;
  }

  const RankRecorder::Impl& stream_;
  const InternTable& interned_;
  int rank_;
  Graph graph_;
  std::vector<std::uint32_t> comms_;
  std::unordered_map<std::uint64_t, std::uint32_t> buffers_;
  std::unordered_map<std::uint64_t, std::uint32_t> values_;
};

}  // namespace

Graph build_graph(const RankRecorder::Impl& stream, const InternTable& interned, int rank,
                  std::string_view reason, std::vector<std::uint32_t>& comms) {
  return Builder(stream, interned, rank).build(reason, comms);
}

}  // namespace trellis::device
