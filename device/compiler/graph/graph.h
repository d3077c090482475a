#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/training_phase.h"
#include "device/compiler/graph/op_record.h"
#include "sim/collectives/plan.h"

namespace trellis::device {

enum class BufferRole : std::uint8_t {
  kExternal,
  kTemporary,
  kOutput
};  ///< kExternal: exists before; kOutput: survives the graph

struct GraphBuffer {
  BufferRole role = BufferRole::kTemporary;
  std::int64_t bytes = 0;
  bool operator==(const GraphBuffer&) const = default;
};

/// A tensor as an operation sees it: a view of a buffer.
struct Value {
  std::uint32_t buffer = 0;
  TensorView view;
  bool operator==(const Value&) const = default;
};

inline constexpr std::uint32_t kNoComm = 0xffffffffu;

struct Node {
  enum class Kind : std::uint8_t { kOp, kCommStart, kCommWait };
  Kind kind = Kind::kOp;
  std::string op;  ///< "mm", "add.Tensor", …: schema without "aten::" and without ".out"/"_"
                   ///< variants' storage effect spelled by outputs
  std::string scalars;
  std::vector<std::uint32_t> inputs;   ///< values
  std::vector<std::uint32_t> outputs;  ///< values
  Scope scope;
  std::uint32_t comm = kNoComm;  ///< kCommStart, kCommWait: index in Graph::comms
};

/// A communication as one rank's graph sees it. The group is a pattern, so equal graphs of
/// different ranks hash equal.
struct CommNode {
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::string axis;  ///< "tp", "dp", "pp"
  std::int32_t group_size = 1;
  std::int32_t group_stride = 1;
  std::int32_t peer_offset = 0;  ///< send/receive: peer − self, in members; 0 otherwise
  bool is_send = false;
  std::int64_t elements = 0;
  DType dtype = DType::kFp32;
  bool operator==(const CommNode&) const = default;
};

/// The operations that a rank executes between two cuts, e.g. one micro-batch's forward: Neuron
/// would compile it to one NEFF.
struct Graph {
  std::string name;  ///< "forward", "backward", "optimizer", …
  [[nodiscard]] TrainingPhase phase() const { return training_phase(name); }
  std::string cut_reason;  ///< why it ended
  std::vector<GraphBuffer> buffers;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<CommNode> comms;

  /// Hash of everything that decides the Program: buffer ids, micro-batch numbers and the names of
  /// layers are not in it.
  [[nodiscard]] ContentHash hash() const;
};

[[nodiscard]] std::string print(const Graph& graph);
[[nodiscard]] std::string to_dot(const Graph& graph);

}  // namespace trellis::device
