#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/compiler/graph/graph.h"
#include "device/driver/memory/pass_log.h"
#include "device/driver/record/operator_uses.h"
#include "device/driver/record/rank_recorder.h"
#include "device/driver/record/shape_churn.h"
#include "device/driver/timing/step_stream.h"

namespace trellis::device {

struct RankRecorder::Impl {
  // the open graph
  std::vector<OpRecord> ops;
  std::vector<Operand> operands;
  std::vector<std::uint32_t>
      partial;  ///< ascending places in `operands` whose buffer is not as long as the view
  std::vector<std::int64_t> partial_bytes;  ///< next to `partial`: the whole buffer
  std::uint64_t next_buffer = 1;
  std::uint64_t first_new_buffer = 1;  ///< buffers from here on were made by the open graph
  std::vector<bool> released;          ///< by id − first_new_buffer
  std::vector<std::uint64_t> released_elsewhere;  ///< ids that other threads gave, far above
  std::int64_t memory_before = 0;
  std::vector<std::uint64_t> correlations;  ///< next to `ops` while profiling, else empty
  std::vector<CounterSample> counters;

  // scopes
  struct Frame {
    std::string text;
    Scope saved;
  };
  std::vector<Frame> frames;
  std::uint32_t scope_id = 0;
  std::string scoped_layer;  ///< by push and pop alone, without backward's look-up
  std::vector<std::pair<std::int64_t, std::string>>
      layer_from;  ///< from this autograd sequence number on: layer

  struct RecordCost {
    std::size_t operations = 0;
    std::size_t host_bytes = 0;
  };
  RecordCost largest_graph;  ///< of all that have ended

  /// Limits of a program that does not end its steps, or does not repeat the same work. Beyond them
  /// the oldest records are forgotten, so that memory is bounded for any number of steps. Trainers
  /// that end their steps stay far below.
  static constexpr std::size_t kMostRuns = std::size_t{1} << 16;   ///< of graphs in a step
  static constexpr std::size_t kMostComms = std::size_t{1} << 19;  ///< communications in a step
  static constexpr std::int64_t kMostOpenNodes =
      std::int64_t{1} << 20;  ///< of distinct graphs, while a step is open
  static constexpr std::int64_t kMostNodes = std::int64_t{1}
                                             << 18;  ///< of distinct graphs, when a step ends
  static constexpr std::size_t kMostLayerBorders = std::size_t{1} << 16;

  // finished work
  std::vector<Graph> graphs;                          ///< distinct ones of this rank, layers named
  std::int64_t graph_nodes = 0;                       ///< of all of them
  std::vector<std::int64_t> graph_runs;               ///< next to `graphs`: how often each ran
  std::map<ContentHash, std::uint32_t> graph_by_key;  ///< open_graph_key → index in `graphs`
  ShapeChurn churn;                                   ///< of rank 0, which speaks for all
  OperatorUses earlier_uses;                          ///< of graphs that are forgotten
  OperatorUses open_uses;                             ///< the same, in the step that is open
  StepStream step;                                    ///< since the last end_step
  StepStream finished;                                ///< the step that ended last

  // repeated passes
  /// The communications of one group, transfers separately from collectives: those that the process
  /// groups number one after the other.
  struct CommStream {
    bool transfer = false;
    std::string axis;
    std::vector<int> ranks;
    std::uint64_t instance = 0;  ///< of several groups of the same ranks
    std::uint64_t repeated =
        0;  ///< communications that were not executed: the process groups have not counted them
    bool operator==(const CommStream&) const = default;
  };
  bool replays = false;  ///< what happens is logged, so that periods can be repeated
  bool logs = false;     ///< now: nothing was repeated in this step
  PassLog log;           ///< since the step began, while nothing was repeated in it
  std::vector<CommStream> comm_streams;
  std::unordered_map<std::int64_t, std::int64_t>
      moved;  ///< handle that a caller holds → the communication that it represents after a
              ///< repetition

  /// Place in comm_streams.
  std::uint32_t stream_of(const CommRequest& request);
  /// Communications of the open step that are forgotten: what their handles are ahead of places in
  /// step.comms.
  std::int64_t forgotten_comms = 0;

  void forget_open_step();
  /// Forgets all distinct graphs but those that `finished` ran. REQUIRES: the open step has run
  /// none, and the clock names none.
  void forget_graphs();
  void add_operands(std::span<const Operand> added, std::span<const std::int64_t> bytes,
                    const InternTable& interned);
  /// Bytes of the whole buffer of the operand at this place.
  [[nodiscard]] std::int64_t bytes_of(std::uint32_t place, const InternTable& interned) const;
  void release(std::uint64_t buffer);  ///< REQUIRES: buffer >= first_new_buffer
  [[nodiscard]] bool is_released(std::uint64_t buffer) const;
  void forget_open_graph();
  void add_counter(std::string_view text);
  /// Host memory that the open graph's records take, beyond what is interned.
  [[nodiscard]] std::size_t host_bytes() const;
};

/// Schema texts of the two pseudo-operations that mark a communication in a stream; scalars hold
/// the index in StepStream::comms.
inline constexpr std::string_view kCommStartSchema = "trellis::comm_start";
inline constexpr std::string_view kCommWaitSchema = "trellis::comm_wait";

/// Builds the open graph of a recorder from its records. `comms` receives, per comm node, the index
/// in StepStream::comms.
[[nodiscard]] Graph build_graph(const RankRecorder::Impl& stream, const InternTable& interned,
                                int rank, std::string_view reason,
                                std::vector<std::uint32_t>& comms);

/// Hash of everything that build_graph would put into the open graph, at a fraction of its cost.
/// Layer names are included, the values of ordinary numbers are not (InternTable::text_key). Equal
/// keys of one rank are graphs that take the same time. `name`: the graph's. `comms` as build_graph
/// gives them.
[[nodiscard]] ContentHash open_graph_key(const RankRecorder::Impl& stream,
                                         const InternTable& interned, std::string_view name,
                                         std::vector<std::uint32_t>& comms);

}  // namespace trellis::device
