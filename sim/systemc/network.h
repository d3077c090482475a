#pragma once

#include <cstdint>
#include <queue>
#include <systemc>
#include <tuple>
#include <vector>

#include "sim/cluster/byte_server.h"
#include "sim/cluster/comm_profile.h"
#include "sim/cluster/sparse_array.h"
#include "sim/job/job.h"

namespace trellis::sim {

/// A stretch of work that others may slow down while it runs: what is left is rescaled whenever the
/// factor changes.
struct StretchedWork {
  std::int64_t end = 0;  ///< picoseconds, with the present factor
  double stretch = 1;
  std::uint32_t version = 0;  ///< of `end`: older timers are void

  void begin(std::int64_t now, std::int64_t duration, double factor);
  void retime(std::int64_t now, double factor);
};

/// Is notified of what happens in the network and when the timers of ranks run out; called on the
/// kernel's thread at that time.
class CommListener {
 public:
  /// Returns the factor by which computation slows this phase down, at least 1.
  virtual double phase_began(std::uint32_t comm, const CommPhase& phase) = 0;
  virtual void comm_ended(std::uint32_t comm, std::int64_t end) = 0;
  virtual void rank_due(int rank, std::uint32_t version) = 0;

 protected:
  ~CommListener() = default;
};

/// All links, DMA engines and memories that communications share, as bandwidth servers. A
/// communication goes through its phases one by one; in each it asks every server that it uses, and
/// the phase lasts until the slowest has served it. Phases that begin at the same moment are served
/// together, so that equal communications end together; others take turns. Also the clock of ranks
/// that compute during a communication.
class Network final : public sc_core::sc_module {
 public:
  explicit Network(const sc_core::sc_module_name& name);

  void configure(const CommMachine& machine);
  void reset(CommListener& listener);
  /// Runs `profile` from `time` on. REQUIRES: time is not before the kernel's clock; the profile
  /// outlives the run.
  void start(std::uint32_t comm, const CommProfile& profile, std::int64_t time);
  /// Changes the factor of the running phase from now on; no effect at a phase's end.
  void set_stretch(std::uint32_t comm, double factor);
  /// Calls rank_due(rank, version) at `time`.
  void wake_rank(int rank, std::uint32_t version, std::int64_t time) {
    wake({time, false, static_cast<std::uint32_t>(rank), version});
  }
  struct Usage {
    ResourceId resource = 0;
    Picoseconds busy;
    Bytes bytes;
    const ByteHistory* history = nullptr;  ///< valid until the next run; empty for what is no link
  };
  /// The resources that have moved bytes, in ascending order.
  [[nodiscard]] std::vector<Usage> usage() const;

 private:
  struct Due {
    std::int64_t time;
    bool is_comm;
    std::uint32_t id;
    std::uint32_t version;
    bool operator<(const Due& other) const {
      return std::tie(time, is_comm, id, version) >
             std::tie(other.time, other.is_comm, other.id, other.version);
    }
  };
  struct Running {
    const CommProfile* profile = nullptr;
    std::size_t next_phase = 0;
    bool in_phase = false;
    StretchedWork work;
  };

  void step();
  void wake(const Due& due);
  /// All communications whose next phase is due now.
  void next_phases();
  void serve(std::int64_t now);
  void begin_phase(std::uint32_t comm);
  ByteServer& server(ResourceId id);

  const CommMachine* machine_ = nullptr;
  CommListener* listener_ = nullptr;
  std::int64_t began_ = 0;           ///< the run, picoseconds of the kernel
  SparseArray<ByteServer> servers_;  ///< by resource; those that a communication of the run uses
  std::vector<Running> running_;     ///< by communication
  std::priority_queue<Due> due_;
  std::vector<std::uint32_t> now_due_;  ///< communications at the end of a phase
  std::vector<CommPhase::Load> asked_;  ///< by them, of all servers
  sc_core::sc_event next_;
};

}  // namespace trellis::sim
