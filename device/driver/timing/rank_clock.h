#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "device/driver/timing/step_stream.h"

namespace trellis::device {

class ProgramTimer;
struct TimedProgram;

/// A place in a stream: an event. Its time is known once the clock has been read after it was made.
struct TimeMark {
  std::optional<Picoseconds> time;
};

/// The device's work in a stretch of simulated time; the slices of one stream never overlap.
struct DeviceSlice {
  enum class Kind : std::uint8_t { kLaunch, kOperation, kHostCopy, kCommunication };
  Kind kind = Kind::kOperation;
  std::string name;
  std::string shapes;  ///< of the operation's operands, "bf16[4, 8], bf16[8, 2]"
  int stream = 0;
  std::uint64_t correlation = 0;  ///< the host's operation that caused it; 0: none
  Picoseconds start, end;
  std::int64_t bytes = 0;  ///< kHostCopy, kCommunication
};

/// One rank's simulated time as the rank alone can know it: its graphs run one after the other in
/// their stream, the host is infinitely fast except for the moments in which it waits for the
/// device, and a communication ends as if all members had arrived with this rank. The time of many
/// ranks together is Session::simulate_step's.
///
///   log:  run graph ─ mark ─ run graph ─ wait for mark ─ host waits ─ …
///         written while the program runs, cheap
///   read: compile and time what is new, walk the log once, give the marks their times
///
/// A log of kMostEntries is read without being asked. Where nothing in it can be asked for (no
/// mark, and the clock was never read) it is forgotten instead, because reading costs compiling:
/// such a clock then counts from there.
///
/// Two streams of a core are timed as if each had the core for itself. Used by the thread that is
/// bound to the rank.
class RankClock {
 public:
  static constexpr int kStreams = 4;  ///< the default one and a pool of three
  static constexpr std::size_t kMostEntries = std::size_t{1} << 16;  ///< of the log; 512 KiB

  explicit RankClock(const std::vector<Graph>& graphs) : graphs_(graphs), chunks_(1) {}
  void use(ProgramTimer& timer) { timer_ = &timer; }
  /// The machine that times; throws Error when there is none.
  [[nodiscard]] const sim::SystemConfig& system() const;

  // the log
  /// `correlations`: per node of the graph, see DeviceSlice; only while profiling.
  void ran(int stream, const GraphInstance& instance, const std::vector<CommRequest>& comms,
           std::vector<std::uint64_t> correlations);
  void mark(int stream, std::shared_ptr<TimeMark> mark);
  void wait(int stream, std::shared_ptr<TimeMark> mark);
  void host_waits(int stream);  ///< −1: for all of them
  void host_waits(std::shared_ptr<TimeMark> mark);
  void end_step();       ///< handles of communications are used again
  void forget_graphs();  ///< the numbers of graphs will mean others

  // the clock
  /// Reads the log to its end. Throws Error when there is nothing to time with, ConfigError for a
  /// communication that the fabric cannot form; the same, once, for what was read without being
  /// asked.
  void read();
  /// The latest stream's time. REQUIRES: read().
  [[nodiscard]] Picoseconds now() const;

  // the profiler
  void start_slices();
  [[nodiscard]] bool slicing() const { return slicing_; }
  /// Since start_slices(), relative to the clock then.
  std::vector<DeviceSlice> stop_slices();

 private:
  struct Comm {
    std::uint32_t handle;
    std::uint32_t request;  ///< index in requests_
    auto operator<=>(const Comm&) const = default;
  };
  struct Run {
    std::uint32_t graph;
    std::vector<Comm> comms;  ///< per comm node of the graph
    auto operator<=>(const Run&) const = default;
  };
  struct Entry {
    enum class Kind : std::uint8_t {
      kRun,
      kProfiledRun,
      kMark,
      kWait,
      kHostWaits,
      kHostWaitsForMark,
      kEndStep
    };
    Kind kind;
    std::int8_t stream;
    std::uint32_t
        what;  ///< kRun: runs_; kProfiledRun: profiled_; kMark, kWait, kHostWaitsForMark: marks_
    bool operator==(const Entry&) const = default;
  };
  struct Chunk {  ///< one step of the log; equal steps in a row are kept once
    std::vector<Entry> entries;
    std::int64_t times = 1;
  };
  struct ProfiledRun {
    std::uint32_t run;
    std::vector<std::uint64_t> correlations;
  };
  class Reader;

  void append(Entry entry);
  void shorten();
  void forget_log();
  std::uint32_t request(const CommRequest& request);

  const std::vector<Graph>& graphs_;
  ProgramTimer* timer_ = nullptr;
  std::vector<CommRequest> requests_;
  std::map<std::tuple<sim::CollectiveKind, std::int64_t, DType, std::vector<int>>, std::uint32_t>
      request_ids_;
  std::vector<Run> runs_;
  std::map<Run, std::uint32_t> run_ids_;
  std::vector<std::shared_ptr<TimeMark>> marks_;
  std::vector<ProfiledRun> profiled_;
  std::vector<Chunk> chunks_;  ///< the last one is open

  std::size_t entries_ = 0;  ///< in all chunks
  bool was_read_ = false;
  std::exception_ptr failure_;  ///< of a reading that was not asked for

  std::vector<std::shared_ptr<const TimedProgram>>
      programs_;                                    ///< by graph; null: not asked for yet
  std::array<Picoseconds, kStreams> streams_{};     ///< when each runs dry
  Picoseconds host_{};                              ///< the host knows that the device got this far
  std::map<std::uint32_t, Picoseconds> comm_ends_;  ///< by handle, of the open step
  std::map<std::pair<bool, std::vector<int>>, Picoseconds>
      group_free_;  ///< by (send/receive, ranks): one communication at a time
  bool slicing_ = false;
  Picoseconds slices_from_{};
  std::vector<DeviceSlice> slices_;
};

}  // namespace trellis::device
