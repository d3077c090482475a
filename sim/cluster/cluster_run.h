#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/cluster/checked_job.h"
#include "sim/cluster/network.h"

namespace trellis::sim {

/// One job on the cluster: every rank walks through its items on its own clock, ahead of the kernel's, and stops only where it waits for
/// a communication whose end is not known yet. The network calls back when it is.
class ClusterRun final : public CommListener {
 public:
  ClusterRun(const SystemConfig& system, const Topology& topology, Network& network, const ClusterJob& job);

  /// Runs the kernel until nothing is left. Throws Error (kHang) naming who waits for what and who is missing.
  [[nodiscard]] ClusterTiming run();

  void comm_ended(std::uint32_t comm, std::int64_t end) override;

 private:
  struct Rank {
    std::size_t next = 0;           ///< item
    std::int64_t clock = 0;
    bool launched = false;          ///< its first program paid for the launch
    std::int64_t wait_began = -1;
  };
  /// State of a canonical communication.
  struct Comm {
    std::vector<bool> started;      ///< by position in participants
    int missing = 0;                ///< participants that must still start it
    std::int64_t ready = 0;
    std::int64_t end = -1;
    std::int64_t wire_bytes = 0;
    std::vector<int> waiting;       ///< ranks
  };
  using ProfileKey = std::tuple<CollectiveKind, std::uint32_t, std::int64_t, int, int, int>;

  void advance(int rank);
  /// False: the rank must wait.
  bool execute(int rank, const ScheduleItem& item, ItemTiming& timing);
  void launch(Rank& rank);
  void start_comm(int rank, std::uint32_t comm);
  bool wait_comm(int rank, std::uint32_t comm);
  void begin(std::uint32_t comm);
  const CommProfile& profile_of(const ClusterComm& comm);

  [[nodiscard]] std::string describe_hang() const;
  [[nodiscard]] std::string describe_rank(int rank) const;
  [[nodiscard]] std::vector<int> missing_ranks(std::uint32_t comm) const;
  [[nodiscard]] ClusterTiming collect() const;

  const SystemConfig& system_;
  const Topology& topology_;
  Network& network_;
  const ClusterJob& job_;
  const CheckedJob checked_;
  std::int64_t base_ = 0;
  std::string failure_;
  std::vector<Rank> ranks_;
  std::vector<Comm> comms_;
  std::map<ProfileKey, CommProfile> profiles_;
  std::vector<std::vector<ItemTiming>> timings_;
};

}  // namespace trellis::sim
