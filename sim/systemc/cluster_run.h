#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/cluster/checked_job.h"
#include "sim/cluster/comm_profiler.h"
#include "sim/cluster/core_sharing.h"
#include "sim/cluster/resource_classes.h"
#include "sim/systemc/network.h"

namespace trellis::sim {

/// One job on the cluster: every rank walks through its items on its own clock, ahead of the
/// kernel's, and stops only where it waits for a communication that has not ended. A segment that
/// moves data while communications of its rank are under way goes in step with the kernel, because
/// they slow each other down. Communications of one group (transfers: of one ordered pair) are a
/// stream: one at a time.
class ClusterRun final : public CommListener {
 public:
  ClusterRun(const SystemConfig& system, const CommMachine& machine, CommTraffic& traffic,
             Network& network, const ClusterJob& job);

  /// Runs the kernel until nothing is left. Throws Error (kHang) naming who waits for what and who
  /// is missing.
  [[nodiscard]] ClusterTiming run();

  double phase_began(std::uint32_t comm, const CommPhase& phase) override;
  void comm_ended(std::uint32_t comm, std::int64_t end) override;
  void rank_due(int rank, std::uint32_t version) override;

 private:
  struct Rank {
    std::size_t next = 0;  ///< item
    std::int64_t clock = 0;
    bool launched = false;       ///< its first program paid for the launch
    std::int64_t host_free = 0;  ///< since when the host records the next program
    std::deque<std::int64_t>
        ended;  ///< when the programs before ended, of as many as may be in flight
    std::int64_t wait_began = -1;
    int under_way = 0;  ///< communications that it has started and that have not ended
    enum class Segment : std::uint8_t {
      kNone,
      kDue,
      kRunning
    } segment = Segment::kNone;  ///< one that goes in step with the kernel
    StretchedWork work;          ///< kDue: until its start; kRunning: until its end
  };
  /// State of a canonical communication.
  struct Comm {
    std::vector<bool> started;  ///< by position in participants
    int missing = 0;            ///< participants that must still start it
    std::int64_t ready = 0;
    std::int64_t end = -1;
    std::int64_t wire_bytes = 0;
    std::vector<int> waiting;  ///< ranks
  };
  struct Stream {
    bool busy = false;
    std::deque<std::uint32_t> ready;
  };
  using StreamKey = std::tuple<std::uint32_t, int, int>;  ///< group, and kSendRecv: from, to
  using ProfileKey = std::tuple<CollectiveKind, std::uint32_t, std::int64_t, int, int, int>;

  // Ranks are places in ClusterJob::ranks from here on; world_rank() is what texts name.
  [[nodiscard]] int world_rank(int rank) const {
    return checked_.ranks[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::vector<int> world_ranks(std::vector<int> ranks) const;
  [[nodiscard]] int core_of(int rank) const {
    return job_.cores[static_cast<std::size_t>(world_rank(rank))];
  }
  void advance(int rank);
  /// False: the rank must wait.
  bool execute(int rank, const ScheduleItem& item, ItemTiming& timing);
  void launch(Rank& rank, const ScheduleItem& item, ItemTiming& timing);
  [[nodiscard]] Picoseconds duration_of(int rank, const SegmentTiming& segment) const;
  bool run_segment(int rank, const SegmentTiming& segment);
  void begin_segment(int rank);
  void end_segment(int rank);
  void retime_segment(int rank);
  /// The communications on this core have to find out how fast they are now.
  void retime_comms(int core);
  [[nodiscard]] const SegmentTiming& segment_of(int rank) const;
  void start_comm(int rank, std::uint32_t comm);
  bool wait_comm(int rank, std::uint32_t comm);
  Stream& stream_of(std::uint32_t comm);
  void comm_ready(std::uint32_t comm);
  void begin(std::uint32_t comm);
  void make_profiles();
  const CommProfile& profile_of(const ClusterComm& comm);
  void collect_links(ClusterTiming& timing) const;
  [[nodiscard]] CommShape shape_of(const ClusterComm& comm, const std::vector<int>& ranks) const;

  [[nodiscard]] std::string describe_hang() const;
  [[nodiscard]] std::string describe_rank(int rank) const;
  [[nodiscard]] std::vector<int> missing_ranks(std::uint32_t comm) const;
  [[nodiscard]] ClusterTiming collect() const;

  const SystemConfig& system_;
  const CommMachine& machine_;
  Network& network_;
  const ClusterJob& job_;
  const CheckedJob checked_;
  CoreSharing sharing_;
  std::map<int, int> rank_of_core_;
  std::set<int> nodes_;          ///< that simulated ranks are on
  std::vector<int> near_ranks_;  ///< of the world, on those nodes
  std::optional<CommProfiler> profiler_;
  std::map<std::pair<bool, std::vector<int>>, std::vector<std::vector<int>>>
      equal_groups_;  ///< by (transfer, group): those of them that lie on the nodes, itself first
  std::int64_t base_ = 0;
  std::string failure_;
  std::vector<Rank> ranks_;
  std::vector<Comm> comms_;
  std::map<StreamKey, Stream> streams_;
  std::map<ProfileKey, CommProfile> profiles_;
  std::vector<const CommProfile*> profile_of_;  ///< by canonical communication
  std::optional<ResourceClasses> classes_;
  std::vector<std::vector<ItemTiming>> timings_;
};

}  // namespace trellis::sim
