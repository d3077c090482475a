#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "sim/collectives/algorithm.h"
#include "sim/collectives/plan.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"
#include "sim/job/rank_fold.h"

/// Input and output of the machine: jobs of many ranks and their timings.
namespace trellis::sim {

/// Tracks of one core on a timeline: the engines, then the DMA queue groups.
inline constexpr int kNumTracks = isa::kNumEngines + isa::kNumDmaQueues;

/// When one kernel was busy on one track, from its first instruction's start to its last one's end.
/// Times from the segment's start.
struct KernelSlice {
  std::uint32_t kernel = 0;
  std::uint8_t track = 0;
  Picoseconds start, end, busy;
  Bytes bytes;  ///< moved, DMA tracks only
  auto operator<=>(const KernelSlice&) const = default;
};

/// When one instruction of a queue was executed: it begins when its semaphores and its engine are
/// there, and ends with its result. Times from the segment's start.
struct InstructionTiming {
  isa::Engine engine = isa::Engine::kTensor;
  std::uint32_t index = 0;  ///< in the engine's queue
  Picoseconds start, end;
  auto operator<=>(const InstructionTiming&) const = default;
};

/// A transfer that is not modelled: its last data come so long after its trigger has started.
struct GivenTransfer {
  isa::Engine engine = isa::Engine::kSync;
  std::uint32_t index = 0;  ///< of the dma instruction in the engine's queue
  Picoseconds time;
  auto operator<=>(const GivenTransfer&) const = default;
};

struct SegmentTiming {
  Picoseconds duration;
  std::array<Picoseconds, kNumTracks> busy{};
  Picoseconds tensor_active;  ///< Tensor engine busy
  Picoseconds compute_only;   ///< Vector, Scalar or GpSimd busy while Tensor is idle
  Picoseconds dma_only;       ///< only DMA busy; the three and the idle rest add up to duration
  Bytes hbm_read, hbm_written;
  std::vector<KernelSlice> slices;  ///< sorted by (track, start)
  std::vector<KernelSlice> pieces;  ///< with TimeOptions::pieces: every uninterrupted stretch of
                                    ///< work of a kernel on a track
  std::vector<InstructionTiming> instructions;  ///< with TimeOptions::instructions, in the order of
                                                ///< execution of each engine
  std::vector<InstructionTiming> transfers;     ///< then also: first and last data of each
  bool operator==(const SegmentTiming&) const = default;
};

/// How long a Program takes on one core: a pure function of (Program, SystemConfig, TimeOptions).
struct CoreTiming {
  std::vector<SegmentTiming> segments;
  bool operator==(const CoreTiming&) const = default;
};

struct TimeOptions {
  /// Skip the repetitions of loops once they are periodic. The result is the same without, only
  /// later.
  bool fast_forward = true;
  bool pieces = false;        ///< fill SegmentTiming::pieces, for a trace; nothing is skipped then
  bool instructions = false;  ///< fill SegmentTiming::instructions and transfers; the same
  std::vector<GivenTransfer> given;  ///< of every segment
  Picoseconds clock_grid;  ///< where a window of the array's clock ends, from a segment's start
  /// HBM traffic of the other core on the stack, which gets its fair share at most. ConfigError
  /// when no other core is on the stack.
  BytesPerSecond neighbour_load{};
};

/// Two programs on the two cores of a pair. Both begin each segment together.
struct PairTiming {
  std::array<CoreTiming, 2> cores;
  Picoseconds duration;  ///< sum over the segments of the longer core
  bool operator==(const PairTiming&) const = default;
};

// ── the cluster ──

struct CommGroup {
  std::string axis;        ///< "tp", "pp", "dp", "world": what the exposed time is charged to
  std::vector<int> ranks;  ///< member position → global rank
};

/// A collective or a transfer that several ranks take part in, matched by (group, sequence).
struct ClusterComm {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint32_t group = 0;
  std::uint64_t sequence =
      0;  ///< n-th communication of this group (kSendRecv: of this ordered pair)
  std::int64_t elements = 0;  ///< as in ring_plan; kSendRecv: the message
  int element_bytes = 1;
  int from = -1, to = -1;  ///< kSendRecv: global ranks
};

[[nodiscard]] inline RankFold::Members members_of(const ClusterComm& comm) {
  return comm.kind == CollectiveKind::kSendRecv ? RankFold::Members::kOneByOne
                                                : RankFold::Members::kAnyOrder;
}

struct ScheduleItem {
  enum class Kind : std::uint8_t { kSegment, kCommStart, kCommWait, kLaunch, kHostCopy };
  Kind kind = Kind::kSegment;
  std::uint32_t program = 0;  ///< kSegment: index in ClusterJob::programs
  std::uint32_t segment = 0;  ///< kSegment
  std::uint32_t comm = 0;     ///< kCommStart, kCommWait: index in ClusterJob::comms
  std::int64_t bytes =
      0;  ///< kHostCopy: between host and device memory, either way; the rank waits for it
  /// kLaunch: that the host records before this program. 0: it was recorded, and is launched,
  /// together with the one before.
  std::int64_t operations = 0;
  bool after_read = false;  ///< kLaunch: the host first reads a value that the device computes
};

/// The work of all ranks in one training step. ranks[i] is the order of the i-th simulated rank: of
/// rank i, or of the fold's i-th representative; groups and transfers name ranks of the world.
/// Device work of a rank is sequential, communications run concurrently with it. A group of
/// represented ranks communicates when their representatives do, and shares links with all groups
/// that do the same elsewhere.
struct ClusterJob {
  std::vector<std::shared_ptr<const CoreTiming>> programs;
  std::vector<CommGroup> groups;
  std::vector<ClusterComm> comms;
  std::vector<std::vector<ScheduleItem>> ranks;
  std::vector<int> cores;  ///< rank of the world → global logical core
  RankFold fold;           ///< empty: every rank is simulated
};

/// The same job with one schedule for each representative of a finer fold: that of the one which
/// represented it, with groups and transfers moved along. `sources` receives, per new schedule, the
/// place of the old one. REQUIRES: `finer` splits classes of job.fold.
[[nodiscard]] ClusterJob unfold(const ClusterJob& job, const RankFold& finer,
                                std::vector<std::size_t>& sources);

/// The duration of work on a slow core.
[[nodiscard]] inline Picoseconds slowed(Picoseconds duration, double factor) {
  return factor == 1 ? duration
                     : Picoseconds(std::llround(static_cast<double>(duration.value) * factor));
}

struct ItemTiming {
  Picoseconds start, end;
  auto operator<=>(const ItemTiming&) const = default;
};

struct CommTiming {
  Picoseconds ready;  ///< the last participant has started it (kSendRecv: the sender)
  Picoseconds end;
  Bytes wire_bytes;  ///< over all links
  auto operator<=>(const CommTiming&) const = default;
};

struct LinkUsage {
  std::string name;
  Picoseconds busy;
  Bytes bytes;
  std::vector<std::int64_t> history = {};  ///< of a cluster's run: bytes in each bin from its begin
                                           ///< on, the last ones left out where nothing moved
};

struct ClusterTiming {
  Picoseconds makespan;
  std::vector<std::vector<ItemTiming>> ranks;  ///< same shape as ClusterJob::ranks
  std::vector<CommTiming> comms;
  std::vector<LinkUsage> links;  ///< of the instances that simulated ranks are on, those that
                                 ///< carried something, by name
  Picoseconds history_bin;       ///< width of LinkUsage::history's bins
};

/// One collective on an idle machine.
struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<int> cores;  ///< global logical cores, each once; kSendRecv: sender, receiver
  Bytes size;  ///< as nccom-test counts: what an all-gather ends with, what a reduce-scatter starts
               ///< with, else each member's buffer
  int element_bytes = 1;
  std::optional<Algorithm> algorithm = {};  ///< none: what the selection table says
};

struct CollectiveTiming {
  Picoseconds time;
  AlgorithmChoice algorithm;
  BytesPerSecond algorithm_bandwidth;  ///< size / time
  BytesPerSecond bus_bandwidth;  ///< times 2(n−1)/n for all-reduce, (n−1)/n for gather, scatter and
                                 ///< all-to-all, 1 otherwise
  Bytes wire_bytes;              ///< over all links
  std::string busiest_link;      ///< "" when nothing moves
  double busiest_link_share = 0;  ///< of the time that it is busy
  std::string bound_by;           ///< the busiest of links, DMA engines and memories
  double bound_share = 0;
  std::vector<LinkUsage> links;  ///< those that carry something, by name
};

}  // namespace trellis::sim
