#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/compiler/graph/graph.h"
#include "device/compiler/graph/op_record.h"
#include "sim/sim.h"

/// A step of the ranks as data, which timing and reports read.
namespace trellis::device {

/// An axis of a program's layout: the place of a rank on it is rank / stride % size.
struct RankAxis {
  std::string name;  ///< "TP", …
  int stride = 1, size = 1;
};

/// "PP 1, DP 0, TP 3"; "": there are no axes.
[[nodiscard]] std::string place_text(const std::vector<RankAxis>& axes, int world_rank);

/// A communication as the trainer's backend announces it.
struct CommRequest {
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::string axis;
  std::vector<int> ranks;  ///< kSendRecv: {sender, receiver}
  std::uint64_t sequence = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kFp32;
};

/// A counter that the program announced: its value from a node of the graph on.
struct CounterSample {
  std::uint32_t node = 0;
  std::string name;  ///< "expert 3"
  std::int64_t value = 0;
  bool operator==(const CounterSample&) const = default;
};

/// One execution of a graph by a rank: which graph, for which micro-batch, with which
/// communications.
struct GraphInstance {
  std::uint32_t graph = 0;  ///< index in RankRecorder::Impl::graphs
  std::int32_t microbatch = -1;
  std::vector<std::uint32_t> comms;  ///< per comm node of the graph: index in StepStream::comms
  std::int64_t memory_before = 0, memory_after = 0;  ///< bytes in use at its borders
  std::vector<CounterSample> counters = {};          ///< by node
};

/// The work of a rank between two step borders.
struct StepStream {
  std::vector<GraphInstance> instances;
  std::vector<CommRequest> comms;
  std::int64_t forgotten =
      0;  ///< runs of graphs before `instances`: the step was too long to be kept, see kMostRuns
};

}  // namespace trellis::device
